"""Keeps torch.compile out of the backend, which is not to be compiled.

Code compiled by Dynamo calls the group (after a graph break, or from DDP's reducer) with Dynamo's
frame hook on. With a group written in C++ there is no frame to see. Of ours Dynamo would compile
every method, and a process group is opaque to it: UnsafeScriptObjectError. So each function by
which the package is entered is marked, in the two places where Dynamo looks:

    the code object   run as it is, with everything it calls: what `torch.compiler.disable` does by
                      a wrapper round every call
    the function      not to be traced into from a caller: a graph break, as with any group

Neither costs a call anything, and neither imports Dynamo, which takes longer than all the rest of
`import torch`; torch._dynamo.trace_rules, the way for packages, is part of it.
"""

# torch's stubs for its C modules do not have what is used here.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from types import FunctionType, ModuleType

from torch._C._dynamo import eval_frame

_WHY = "wiiiiide is a backend: there is nothing in it to compile"
_ALONE = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def keep_out_of(*modules: ModuleType) -> None:
    """Mark the functions of these modules, and the methods of their classes."""
    for module in modules:
        for thing in vars(module).values():
            if getattr(thing, "__module__", None) != module.__name__:
                continue  # it is only used there
            for function in vars(thing).values() if isinstance(thing, type) else [thing]:
                _mark(function)


def _mark(function: object) -> None:
    if isinstance(function, property):
        function = function.fget
    if isinstance(function, FunctionType):
        eval_frame.set_code_exec_strategy(function.__code__, _ALONE)
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = _WHY
