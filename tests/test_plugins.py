"""Variants from files outside the package: loaded, refused with a reason, compared, unloaded."""

import json
import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from terminal import refused, run

from lenetgpu.errors import LenetError
from lenetgpu.measure import plugins
from lenetgpu.measure.bench import stage_of
from lenetgpu.stages import plugin_files, variants

HEAD = """
import numpy as np
from lenetgpu.stages.registry import cpu, cuda, variant
"""
POOL = """
@variant(kind="pool", family="plugin", reads="NHWC", writes="NHWC", needs=cpu())
def slices(x, y, problem):
    r = np.maximum(x, 0)
    y[...] = (r[:, ::2, ::2] + r[:, ::2, 1::2] + r[:, 1::2, ::2] + r[:, 1::2, 1::2]) / 4
"""
CONV = """
@variant(kind="conv", family="plugin", reads="NHWC", writes="NHWC", needs=cpu())
def plain(x, w, y, problem):
    y[...] = 0  # fast: a sample makes many calls
    for r, s in np.ndindex(problem.R, problem.S):
        y += x[:, r : r + problem.OH, s : s + problem.OW] @ w[r, s]
"""
NEEDS_GPU = CONV.replace("cpu()", "cuda(80)").replace("plain", "elsewhere")
WRONG_POOL = POOL.replace("slices", "forgets_relu").replace("np.maximum(x, 0)", "x")


def write(folder, name="mine.py", text=HEAD + POOL):
    path = folder / name
    path.write_text(text)
    return path


compare = partial(run, "compare", "pool1", "--batch", 50, "--device", "cpu", "--seconds", 0.05)
conv = partial(run, "conv", "2,6,7,3,3", "--device", "cpu", "--seconds", 0.02, "--only", "tiled")


def entries(result):
    document = json.loads(result.stdout)
    candidates = document["cases"][0]["candidates"] if "cases" in document else None
    return {entry["name"]: entry for entry in candidates or document["candidates"]}


@pytest.fixture(autouse=True)
def nothing_stays():
    before, modules = variants(), set(sys.modules)
    yield
    assert variants() == before
    left = [name for name in set(sys.modules) - modules if name.startswith("_lenetgpu_outside")]
    assert not left


def test_plugins_are_loaded_in_order_and_unloaded(tmp_path):
    path = write(tmp_path)
    with plugin_files.loaded([path, tmp_path / "." / "mine.py"]) as found:
        assert [made.full_name for made in found] == ["plugin.slices"]
        assert found[0] in variants("pool", "cpu")
    with pytest.raises(KeyError), plugin_files.loaded([path]):
        raise KeyError
    write(tmp_path, "mine.py", HEAD + CONV)
    write(tmp_path, "a.py", "from .tools import KIND\n" + HEAD + POOL.replace('"pool"', "KIND"))
    write(tmp_path, "tools.py", "KIND = 'pool'\n")
    (tmp_path / "notes.txt").write_text("not Python")
    with plugin_files.loaded([tmp_path]) as found:
        assert [made.full_name for made in found] == ["plugin.slices", "plugin.plain"]


BAD = {
    "def f():\n    return 1 / 0\nf()": "mine.py, line 5: expected to import it, "
    "found ZeroDivisionError: division by zero",
    "raise SystemExit('no')": "mine.py, line 4: expected to import it, found SystemExit: no",
    "x = 1": "mine.py: expected variants, registered by lenetgpu.stages.registry.variant, found "
    "none",
    POOL + POOL: "mine.py, line 10: expected a name of its own, found that pool variant "
    "plugin.slices is registered twice",
    POOL.replace("plugin", "a").replace("needs", 'also="fused.rows", needs'): "found that pool "
    "variant fused.rows is registered twice",
    POOL.replace('"pool"', '"pol"'): "mine.py, plugin.slices: expected one of conv, pool, fc",
    POOL.replace('"NHWC"', '"NHCW"', 1): "mine.py, plugin.slices: expected layouts of NHWC, NCHW",
    POOL.replace("cpu()", '"cpu"'): "mine.py, plugin.slices: expected needs=cpu(), cuda() or",
    POOL.replace(
        '"plugin"', '"a [b]\\x1b"'
    ): "mine.py, a [b]\\x1b.slices: expected a family and a name of letters, digits and _",
}


@pytest.mark.parametrize(("text", "words"), BAD.items(), ids=range(len(BAD)))
def test_bad_plugin_is_one_sentence(text, words, tmp_path):
    with pytest.raises(LenetError) as caught:
        plugin_files.load(write(tmp_path, text=HEAD + text + "\n"))
    said = str(caught.value)
    if sys.version_info < (3, 11):  # a failing decorator is reported at its function
        said = re.sub(r"line (6|11)(?=: )", lambda line: f"line {int(line[1]) - 1}", said)
    assert words in said and "\n" not in said.strip()


def test_plugin_that_exits_ends_the_command_with_a_sentence(tmp_path):
    result = compare("--with", write(tmp_path, text="import os; os._exit(3)"))
    words = "mine.py: expected to import it, found that its process ended with exit code 3"
    refused(result, words)


def test_invalid_plugin_path_or_line_is_named(tmp_path):
    expected = "expected a .py file or a folder of .py files, found"
    with pytest.raises(LenetError, match=f"missing.py: {expected} no such file"):
        plugin_files.load(tmp_path / "missing.py")
    with pytest.raises(LenetError, match=f"mine.cu: {expected} another file type"):
        plugin_files.load(write(tmp_path, "mine.cu"))
    with pytest.raises(LenetError, match=r"expected a folder with .py files, found none in it"):
        plugin_files.load(tmp_path)
    write(tmp_path, "tools.py", "\n\nimport nowhere_at_all\n")
    with pytest.raises(LenetError, match=r"tools\.py, line 3: expected to import it"):
        plugin_files.load(write(tmp_path, text="from . import tools\n"))


def test_correct_plugin_is_timed_and_wrong_one_exits_with_1(tmp_path):
    path = write(tmp_path, text=HEAD + POOL + WRONG_POOL)
    words = ("--baseline", "plugin", "--only", "fused", "--json", "-")
    result = compare("--with", path, *words, code=1)
    found = entries(result)
    assert found["plugin.slices"]["status"] == "right"
    assert found["plugin.slices"]["verdict"] == "baseline"
    assert found["plugin.slices"]["median_ms"] > 0
    assert found["fused.rows"]["ratio"]["median"] > 0
    assert found["plugin.forgets_relu"]["status"] == "wrong"
    assert "median_ms" not in found["plugin.forgets_relu"]
    assert "WRONG: plugin.forgets_relu" in result.stderr


def test_plugins_of_other_kinds_or_precisions_are_reported(tmp_path):
    both = compare(
        "--with", write(tmp_path, text=HEAD + POOL + CONV), "--only", "fused", "--json", "-", code=0
    )
    assert "plugin.plain" not in entries(both)
    assert "--with: expected variants of kind pool, left out plugin.plain (conv)" in both.stderr
    for text, words in (
        (CONV, "--with: expected variants of kind pool, found plugin.plain (conv)"),
        (POOL.replace("needs", 'precision="bf16", needs'),
         "plugin.slices: expected a precision of fp32, fp16x3, tf32x3, fp16, fp16w, int8, int8s, "),
    ):  # fmt: skip
        refused(compare("--with", write(tmp_path, text=HEAD + text)), words)


@pytest.mark.parametrize("arguments", [("plans",), ("--suite", "course")])
def test_plugins_are_refused_for_whole_networks(arguments, tmp_path):
    result = run("compare", *arguments, "--with", write(tmp_path))
    refused(result, "--with: expected a stage or a span to compare, found ")


def test_conv_plugin_is_compared_despite_only(tmp_path):
    path = write(tmp_path, text=HEAD + CONV + NEEDS_GPU)
    result = conv("--with", path, "--json", "-", code=0)
    found = entries(result)
    assert {name for name in found if not name.startswith("torch")} == {
        "tiled.blocked", "plugin.plain", "plugin.elsewhere",
    }  # fmt: skip
    assert found["plugin.plain"]["status"] == "right"
    assert found["plugin.elsewhere"]["status"] == "refused"
    assert found["plugin.elsewhere"]["note"] == "requires cuda 8.0, found device cpu"


BREAKING = """
@variant(kind="{kind}", family="plugin", reads="NHWC", writes="NHWC", needs=cpu(){more})
def {name}({arguments}):
    calls.append(0)
    if len(calls) > {most}:
        {how}
    {after}
"""
BREAKS = {
    "exits": (0, "raise SystemExit(0)", "cannot run: SystemExit: 0"),
    "raises": (6, "raise ValueError('x[i] in [/batch]')", r"ValueError: x\[i\] in \[/batch\]"),
    "leaves": (6, "os._exit(3)", "its process ended with exit code 3"),
    "crashes": (0, "ctypes.string_at(0)", "its process crashed: Segmentation fault"),
    "hangs": (6, "time.sleep(99)", "its process gave no answer in 8 s"),
    "asks": (0, "pass", "ZeroDivisionError: division by zero"),
    "prepares": (0, "pass", "TypeError: .*takes 2 positional arguments"),
}
FIELDS = {
    "asks": ", supports=lambda problem: 1 / 0",
    "prepares": ", prepare=lambda w, problem: w",
    "refuses": ', supports=lambda p: "supports 1x1 maps only"',
}
SIDES = {
    "pool": ("x, y, problem", "slices(x, y, problem)"),
    "conv": ("x, w, y, problem", "plain(x, w, y, problem)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "conv"])
def test_failing_plugin_is_named_and_others_continue(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "PATIENCE_S", 8.0)
    text = f"import ctypes, os, time\n{HEAD}{POOL if kind == 'pool' else CONV}calls = []\n"
    arguments, after = SIDES[kind]
    for name, (most, how, _) in (BREAKS | {"refuses": (0, "pass", "")}).items():
        text += BREAKING.format(kind=kind, name=name, more=FIELDS.get(name, ""), most=most,
                                how=how, arguments=arguments, after=after)  # fmt: skip
    command = partial(compare, "--only", "fused") if kind == "pool" else conv
    honest = "plugin.slices" if kind == "pool" else "plugin.plain"
    result = command("--with", write(tmp_path, text=text), "--json", "-", code=1)
    found = entries(result)
    for name, (_, _, words) in BREAKS.items():
        entry = found[f"plugin.{name}"]
        assert entry["status"] == "failed" and "median_ms" not in entry, entry
        assert re.search(words, entry["note"]), entry
        assert re.search(f"WRONG: .*plugin.{name}, .*{words}", result.stderr)
    assert found["plugin.refuses"]["note"] == "supports 1x1 maps only"
    assert found[honest].get("median_ms", 0) > 0, found[honest]["note"]
    assert "right" in {e["status"] for name, e in found.items() if not name.startswith("plugin")}


def test_crash_while_listing_restarts_for_the_next_variant(tmp_path):
    """The process that answers for all files may crash in a variant's own functions."""
    text = HEAD + POOL.replace("needs", "supports=lambda p: ctypes.string_at(0), needs")
    text += POOL.replace("slices", "honest")
    work = plugins.Work(stage_of("pool1").problem, 10, None)
    found = plugins.Plugins([write(tmp_path, text="import ctypes\n" + text)], None)
    crashed, honest = (found.candidate(one, work) for one in found.found)
    assert (crashed.status, honest.status) == ("failed", "waiting")
    assert "its process crashed: Segmentation fault" in crashed.note


def test_interrupted_reply_is_not_used_for_the_next_request(tmp_path, monkeypatch):
    child = plugins.Child([write(tmp_path)], None)
    received = child._ours.poll

    def interrupted(seconds):
        monkeypatch.setattr(child._ours, "poll", received)
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_ours", SimpleNamespace(
        poll=interrupted, recv=child._ours.recv, send=child._ours.send, closed=False,
        close=child._ours.close,
    ))  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        child.ask("load", [], None)
    with pytest.raises(LenetError, match=r"none.py: expected a \.py file"):
        child.ask("load", [tmp_path / "none.py"], None)
