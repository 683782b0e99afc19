"""CPU kernels as machine code: compiled by LLVM once, cached as an object file, loaded.

Importing this module imports llvmlite.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from lenetgpu.cpu.vector import Vectors, i64, processor

Native = Callable[..., None]
_loaded: list[Any] = []


@dataclass(frozen=True)
class Emitted:
    """Kernel with `arguments` 64-bit integers (addresses, sizes): `emit(vectors, *them)`."""

    name: str
    arguments: int
    emit: Callable[..., None]


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="jitdefault"
    )


@cache
def _sources() -> bytes:
    files = sorted(Path(__file__).resolve().parent.glob("*.py"))
    return b"".join(file.read_bytes() for file in files)


def key(kernel: Emitted, sources: bytes) -> str:
    """Hash everything the machine code depends on: this folder's files, `sources` and more."""
    facts = (llvmlite.__version__, llvm.get_default_triple(), *processor(), kernel.name)
    return sha256("\0".join(facts).encode() + _sources() + sources).hexdigest()


def machine_code(kernel: Emitted) -> bytes:
    """Compile `kernel` to an object file."""
    target = _target()
    module = ir.Module(kernel.name)
    module.triple, module.data_layout = target.triple, str(target.target_data)
    kind = ir.FunctionType(ir.VoidType(), [i64] * kernel.arguments)
    function = ir.Function(module, kind, kernel.name)
    builder = ir.IRBuilder(function.append_basic_block())
    kernel.emit(Vectors(builder), *function.args)
    builder.ret_void()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(parsed, passes)
    code: bytes = target.emit_object(parsed)
    return code


def load(kernel: Emitted, code: bytes) -> Native:
    """Load `machine_code` as a function of Python integers, which releases the GIL as it runs."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * kernel.arguments)
    function: Native = kind(engine.get_function_address(kernel.name))
    return function
