"""Endings of names are taken in upper case as well, and what is written is of their form."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.files.output import LabelWriter, write_labels
from lenetgpu.lab.charts import check_plot
from lenetgpu.lab.mistakes import check_errors
from lenetgpu.lab.report import ReportRequest

MEASURED = ROOT / "docs" / "measured" / "nvidia-h200" / "cold.json"


def test_what_checks_a_name_takes_upper_case(tmp_path):
    check_errors(tmp_path / "e.CSV")
    write_labels(tmp_path / "l.CSV", np.array([7], np.int32))
    assert (tmp_path / "l.CSV").read_text() == "index,label\n0,7\n"
    pytest.importorskip("vl_convert", reason="needs vl-convert-python: extra report")
    check_errors(tmp_path / "e.PNG")
    check_plot(tmp_path / "p.SVG")


def test_a_report_in_upper_case_and_how_many_files_it_is_from(tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert-python: extra report")
    done = CliRunner().invoke(main, ["report", str(tmp_path / "o.HTML"), str(MEASURED)])
    assert (done.exit_code, done.output.endswith(" MB from 1 file\n")) == (0, True)
    with pytest.raises(LenetError, match="^--limit: expected 1 or more images, found 0"):
        ReportRequest(tmp_path / "o.html", limit=0).check()


def test_a_name_is_no_formula_of_a_spreadsheet(tmp_path):
    names = ["=cmd|calc.png", "+1.png", "-x.png", "@a.png", "a=b.png"]
    writer = LabelWriter(tmp_path / "l.csv", 5, False, names=names)
    writer.write(np.arange(5, dtype=np.int32), None)
    writer.close(None)
    found = (tmp_path / "l.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1] for line in found] == [f"'{n}" for n in names[:4]] + names[4:]
