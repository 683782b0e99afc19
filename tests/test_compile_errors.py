"""A kernel that does not compile: a sentence with file, line and compiler message, and the log."""

import pytest
from compiling import compiles

from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.nvrtc import CompileError, Kernel, compile_kernel

HEAD = 'extern "C" __global__ void per_warp(float* x) {\n'


pytestmark = compiles


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path / "cache"))
    nvrtc.source_hash.cache_clear()


def refused(tmp_path, text, arch="sm_90a"):
    source = tmp_path / "mine.cu"
    source.write_text(text)
    with pytest.raises(CompileError) as caught:
        compile_kernel(Kernel(source, "per_warp"), arch)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


SAID = {
    "one error": (
        HEAD + "    x[0] = foo;\n}\n",
        "mine.cu, line 2, per_warp for sm_90a: expected it to compile, found: "
        'identifier "foo" is undefined',
    ),
    "three errors after a warning": (
        HEAD + "    int idle;\n    x[0] = foo;\n    x[1] = bar;\n    x[2] = baz;\n}\n",
        "mine.cu, line 3, per_warp for sm_90a: expected it to compile, found: "
        'identifier "foo" is undefined (and 2 more errors)',
    ),
    "a header that is missing": (
        '\n#include "nowhere.cuh"\n' + HEAD + "}\n",
        "mine.cu, line 2, per_warp for sm_90a: expected it to compile, found: "
        'cannot open source file "nowhere.cuh"',
    ),
    "too much shared memory": (
        HEAD + "    __shared__ float held[100000];\n    held[threadIdx.x] = x[0];\n"
        "    __syncthreads();\n    x[1] = held[7];\n}\n",
        "mine.cu, per_warp for sm_90a: expected it to compile, found: "
        "Entry function 'per_warp' uses too much shared data",
    ),
    "PTX that is none": (
        HEAD + '    asm("foo.bar;");\n}\n',
        "mine.cu, per_warp for sm_90a: expected it to compile, found: Unknown modifier '.bar' "
        "(and 1 more error)",
    ),
    "no such entry": (
        HEAD.replace("per_warp", "per_wrap") + "}\n",
        'mine.cu, per_warp for sm_90a: expected an extern "C" __global__ function of this name, '
        "found per_wrap",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_first_nvrtc_error_is_the_message(case, tmp_path):
    text, sentence = SAID[case]
    error = refused(tmp_path, text)
    assert str(error).startswith(sentence)
    if case == "three errors after a warning":
        assert '3 errors detected in the compilation of "mine.cu"' in error.log


def test_header_error_names_header_and_source(tmp_path):
    (tmp_path / "tile.cuh").write_text("\n\n__device__ float tile() { return nothing; }\n")
    error = refused(tmp_path, '#include "tile.cuh"\n' + HEAD + "    x[0] = tile();\n}\n")
    assert str(error) == (
        "tile.cuh, line 3, per_warp of mine.cu for sm_90a: expected it to compile, found: "
        'identifier "nothing" is undefined'
    )


def test_unknown_architecture_is_refused(tmp_path):
    error = refused(tmp_path, HEAD + "}\n", arch="sm_12")
    assert "per_warp for sm_12: expected it to compile, found: invalid value for" in str(error)
