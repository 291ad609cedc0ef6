"""PyTorch's own distributed suite, run against the backend.

The suite comes with the torch wheel (torch.testing._internal.distributed.distributed_test) and is
written to be imported by one test file per backend. Importing it changes the process for good:
it reads its backend from the environment, seeds, and alters flags of torch. So nothing here
imports it into pytest's process. The layers, from the outside in:

    test_conformance  one pytest test per test of the suite
    client            starts the server, asks it to run one test, hands back what happened
    server            a process of its own; its fork server holds torch and the suite, loaded once
    rank              one process per rank and test, forked from there in milliseconds
    suite             the suite itself, imported so that the backend under test counts as its own
"""
