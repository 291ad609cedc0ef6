"""A rank of Open MPI, the fastest thing commonly at hand on one host.

Started under mpirun by lib/fleet.py. Between measurements it waits in lib/link.py, outside of MPI.
"""

from mpi4py import MPI

from lib import link
from lib.link import Message
from lib.one_host import buffers
from lib.one_host.cells import ALL_REDUCE, REDUCE_SCATTER


def _call(job: buffers.OperationJob) -> buffers.Call:
    world = MPI.COMM_WORLD
    # The same memory a tensor has: numpy would ask the kernel for huge pages of its own accord.
    source, target = job.source.numpy(), job.target.numpy()
    if job.op == ALL_REDUCE:
        return lambda: world.Allreduce(MPI.IN_PLACE, target)
    if job.op == REDUCE_SCATTER:
        return lambda: world.Reduce_scatter_block(source, target)
    return lambda: world.Allgather(source, target)


class MpiRank:
    """This rank's buffers."""

    def __init__(self) -> None:
        world = MPI.COMM_WORLD
        self.rank: int = world.Get_rank()
        self._jobs = buffers.Jobs(self.rank, world.Get_size())

    def measure(self, message: Message) -> Message:
        job = self._jobs.get("ordinary", message["op"], message["nbytes"], buffers.ordinary)
        return dict(buffers.run(job, _call(job), message))

    def stop(self, message: Message) -> Message:
        return {}


if __name__ == "__main__":
    link.run(MpiRank)
