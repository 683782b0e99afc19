"""A kernel that does not compile: a sentence with file, line and compiler message, and the log.

Each source in broken/uncompilable/ starts with the sentence.
"""

from pathlib import Path

import pytest
from compiling import compiles

from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.nvrtc import CompileError, Kernel, compile_kernel

pytestmark = compiles
SOURCES = sorted((Path(__file__).parent / "broken" / "uncompilable").glob("*.cu"))


@pytest.fixture(autouse=True)
def forgotten(own_cache):
    nvrtc.source_hash.cache_clear()


def refused(source, arch="sm_90a"):
    with pytest.raises(CompileError) as caught:
        compile_kernel(Kernel(source, "per_warp"), arch)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_first_nvrtc_error_is_the_message(source):
    error, sentence = refused(source), source.read_text().partition("\n")[0].removeprefix("// ")
    assert str(error).startswith(sentence)
    if source.stem == "three_errors":
        assert '3 errors detected in the compilation of "three_errors.cu"' in error.log


def test_unknown_architecture_is_refused():
    error = refused(SOURCES[0], arch="sm_12")
    assert "per_warp for sm_12: expected it to compile, found: invalid value for" in str(error)
