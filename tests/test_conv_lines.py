"""Files of benchdnn's lines: its rule for missing entries, knobs that hold, logs, bad lines."""

import random
from dataclasses import replace

import terminal

from lenetgpu.errors import LenetError
from lenetgpu.files.convs import benchdnn
from lenetgpu.files.convs.described import convolution
from lenetgpu.lab.conv.request import from_file
from lenetgpu.problems import Conv

UNSET = {"i": 0, "k": 0, "o": 0, "s": 1, "p": -1, "d": 0}


def completed(side):
    """Return a dimension's six values; None if all are benchdnn's defaults; [] if invalid."""
    if side in ({**UNSET, "p": p} for p in (-1, 0)):
        return None
    if 0 in (side["i"], side["k"], side["s"]):
        return []
    window = side["k"] * side["d"] + side["k"] - side["d"]
    if side["o"] == 0:
        side["p"] = max(0, side["p"])
        room = side["i"] + 2 * side["p"] - window
        side["o"] = 1 + (room // side["s"] if room >= 0 else -(-room // side["s"]))
    elif side["p"] == -1:
        lacking = side["s"] * side["o"] - side["s"] + window - side["i"]
        side["p"] = next(p for p in range(99) if 2 * p + 1 >= lacking)
    return list(side.values())


def stated(entries):
    """Return the convolution that benchdnn's rule gives for `entries`, or None."""
    high, wide = (
        completed({what: entries.get(what + of, default) for what, default in UNSET.items()})
        for of in "hw"
    )
    if not (high or wide) or [] in (high, wide):
        return None
    i, k, o, s, p, d = zip(high or [1, 1, 1, 1, 0, 0], wide or high, strict=True)
    far, sizes = (d[0] + 1, d[1] + 1), (entries["mb"], *i, entries["ic"], entries["oc"])
    try:
        return convolution("it", sizes, k, o, s, p, far, entries.get("g", 1))
    except LenetError:
        return None


def test_missing_entries_follow_benchdnns_rule_on_thousands_of_lines():
    draw, taken = random.Random(36), [0, 0]
    values = {"i": range(13), "k": range(5), "o": range(9), "s": range(4), "p": range(4)}
    for _ in range(6000):
        entries = {"mb": draw.randint(1, 9), "ic": 6, "oc": 12} | draw.choice([{}, {"g": 3}])
        for of in draw.choice(["h", "w", "hw", "hw"]):
            likely = draw.choice([0.1, 0.95])
            for what in UNSET:
                if draw.random() < (likely if what in "ik" else likely / 4):
                    entries[what + of] = draw.choice(values.get(what, range(3)))
        line = "_".join(f"{key}{entries[key]}" for key in draw.sample([*entries], len(entries)))
        try:
            given = benchdnn.read(f"--dir=FWD_D {line}{draw.choice(['', 'nx1', '_n9'])}")
        except LenetError:
            given = None
        expected = stated(entries)
        assert (given and given.problem) == expected, line
        taken[expected is not None] += 1
    assert min(taken) > 1500


TENSORS = "src_{0}:a:blocked:x::f0 wei_{0}::b:x::f0 bia_{1}::b:a::f0 dst:{0}::b:a:f0"
KINDS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "s8": None}
DEFAULTS = ("f32", "FWD_B", False)


def test_150_lines_of_a_file_are_read_as_benchdnn_does(tmp_path):
    draw, lines, expected, held = random.Random(150), [], [], DEFAULTS
    for channels in range(1, 151):
        form, knobs, now = draw.randrange(7), "", held
        if draw.random() < 0.6:
            now = draw.choice([*KINDS]), draw.choice(["FWD_B", "fwd_i"]), draw.random() < 0.5
            knobs = f"--mode=P --reset --dt={now[0]} --stag=axb --dir={now[1]} -v1 "
            knobs += f"--attr-post-ops={'relu' * now[2]} "
        text = f"mb3ic{channels}ih8oc4kh3ph1"
        if form == 0:
            text, held = f"{knobs} # nothing here: ic8ih8oc8kh3", now
        elif form == 1:
            text, held = "--reset", DEFAULTS
        elif form == 2:
            text = f"{draw.choice(['--speed=9', '--batch=x'])} {text}"
        elif form == 3:  # of a log
            made = TENSORS.format(now[0], "f32" if now[1] == "FWD_B" else "undef")
            relu = draw.choice(["scratchpad:user attr-post-ops:eltwise_relu", "post_ops:'relu;'"])
            mark = draw.choice(["onednn_verbose,v1,17.5,primitive", "2026-11-28 dnnl_verbose"])
            text = f"{mark},exec,cpu,convolution,jit:avx2,forward_training,{made},{relu * now[2]},"
            text += f"alg:direct,mb3_ic{channels}oc4_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1,0.08"
            lines.append(text.replace("exec", "create:cache_miss"))
        elif form == 4:  # a command of its own
            now, text = now if knobs else DEFAULTS, f"--conv {knobs}{text}"
            text = draw.choice(["", "./benchdnn "]) + text
        else:
            held, text = now, knobs + text + draw.choice(["", "  # note"])
        lines.append(text)
        if form > 1:
            made = Conv(8, 8, channels, 4, 3, 3, 1, 1, bias=now[1] == "FWD_B", relu=now[2])
            kind = KINDS[now[0]] if form > 2 else None
            expected.append(kind and replace(made, dtype=kind))
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines))
    assert [None if one.others else one.problem for one in from_file(path, True)] == expected
    assert 20 < expected.count(None) < 60


def test_bad_and_large_lines_leave_the_others(tmp_path):
    path, rows = tmp_path / "lines.txt", tmp_path / "rows.csv"
    path.write_text("--frob=1\nic8ih8oc8kh9\nmb9000ic800ih800oc8kh3\nmb9ic512ih512oc512kh9ph4\n"
                    "onednn_verbose,v1,info,cpu\nic2ih8oc2kh3 # fine\n")  # fmt: skip
    words = ["--device", "cpu", "--only", "unrolled", "--seconds", "0.01", "--csv"]
    result = terminal.run("conv", "--from", path, *words, rows)
    assert "supported: 1 of 5 convolutions" in result.output and result.exit_code == 0
    for said in ("found --frob=1", "map of 8x8, found 9x9", "fewer than 2^31", "check on a CPU"):
        assert said in rows.read_text(), said


def test_pasted_options_of_benchdnn_are_the_shape():
    line = "--conv --dir=FWD_B --dt=bf16 mb5ic8ih8oc8kh3"
    for words in (["--list", *line.split()], ["./benchdnn", *line.split(), "--list"],
                  [line.replace("--conv", "--reset"), "--list"]):  # fmt: skip
        said = " ".join(terminal.run("conv", *words).output.split())
        assert "lenetgpu conv 8,8,8,8,3,1,0 --dtype bf16 --batch 5" in said
