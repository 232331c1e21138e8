"""Compiler of a framework, which is kept out of what it traces of this package: see :mod:`probe.core.door`."""

from __future__ import annotations

from types import CodeType, ModuleType

from probe.core import door


def keep_out(torch: ModuleType) -> None:
    """Have torch's compiler trace what enters to nothing. This imports no compiler, which takes a second."""
    frames = torch._C._dynamo.eval_frame

    def never_compiled(code: CodeType, with_calls: bool) -> None:
        """Prevent compilation of a function by itself, where its caller is not compiled, and of all that it calls if
        ``with_calls``; it may still become a part of a larger graph."""
        if hasattr(frames, "set_code_exec_strategy"):  # torch 2.13
            action = frames._FrameAction
            calls = action.SKIP if with_calls else action.DEFAULT
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, calls))
        elif hasattr(frames, "skip_code"):  # torch 2.4: not what it calls
            frames.skip_code(code)

    door.keep_compilers_out(torch.compiler.is_compiling, never_compiled)
