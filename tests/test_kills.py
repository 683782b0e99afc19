"""A few of the moments of scripts/kills.py: runs ended by a signal, or killed where they are."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_killed_run_leaves_old_or_whole_files(script, tmp_path, index):
    kills = script("kills")
    writers = kills.writers(400)
    row = kills.kill(writers[index], 2, tmp_path, writers[-1])
    assert row.wrong == []
    assert row.moments == 2
    assert row.counts["old"] + row.counts["whole"] == 2 * len(writers[index].written)


def test_a_signal_at_any_moment_has_its_code(script, tmp_path):
    kills = script("kills")
    asked = kills.commands(400)
    for command in (asked[1], asked[-3]):
        row = kills.stop(command, 1, tmp_path)
        assert row.wrong == []


def test_what_is_neither_old_nor_whole_is_told(script, tmp_path):
    kills = script("kills")
    command = kills.Command(("infer",), ("x.npy", "r.json", "x.csv", "x.h5", "none"))
    whole = {"x.npy": b"all of it"}
    for name, content in (("x.npy", b"all"), ("r.json", b"{"), ("x.csv", b"0,"), ("x.h5", b"")):
        (tmp_path / name).write_bytes(content)
    row = kills.Row("x")
    kills.judge(row, command, tmp_path, whole)
    found = [sentence.split(" (")[0] for sentence in row.wrong]
    assert found == [*(f"{name} is partial" for name in command.written[:4]), "none is lost"]
    kills.put_old(command, tmp_path)
    row = kills.Row("x")
    kills.judge(row, command, tmp_path, whole)
    assert (row.wrong, row.counts) == ([], {"old": 5})


def test_kills_of_jobs_and_workers(script, tmp_path):
    pytest.importorskip("distributed", reason="no Dask")
    kills = script("kills")
    for name, kill in (("jobs", kills.kill_jobs), ("workers", kills.kill_workers)):
        row = kill(1, tmp_path / name)
        assert row.wrong == [] and row.moments >= 1


def test_kills_see_what_is_wrong_with_a_job(script, tmp_path):
    kills = script("kills")
    jobs, row = kills.Jobs(tmp_path, 2_000), kills.Row("x")
    out = jobs.end(jobs.start(tmp_path / "other"))
    (out / "part-000001.npy").write_bytes((out / "part-000000.npy").read_bytes())
    kills.judge_job(jobs, out, row)
    assert len(row.wrong) == 1 and "other labels" in row.wrong[0]
    lines = (out / "manifest.json").read_text().splitlines(keepends=True)
    (out / "manifest.json").write_text("".join(lines[:-2]))
    assert kills.unlisted(out) == 2
