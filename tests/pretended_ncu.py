"""Stand-in for Nsight Compute's `ncu` that runs nothing and prints what it is configured to.

It is configured by ncu.json in its folder. `kernels`: each variant's own kernels. `extra`: library
kernels before them. `lost`: kernels that it does not print. `cut`: characters missing at the end.
`errors`: errors of variants. `end`: exit code. `fail`: an error message to exit with instead. It
reads work.json like the process it would profile, writes sections.json, and prints raw CSV with
remarks, device columns and thousands separators.
"""

import json
import os
import sys
from pathlib import Path

MARK = "section_begins"
UNITS = {"gpu__time_duration.sum": "ns"}
# Printed value by the end of a metric's name; the first match counts.
VALUES = {
    "gpu__time_duration.sum": "2,000,000",
    "dram__bytes_read.sum.per_second": "1,500,000,000,000.50",
    "dram__bytes_write.sum.per_second": "750,000,000",
    "lts__t_bytes.sum.per_second": "n/a",
    "global_op_ld.pct": "12.50",
    "global_op_st.pct": "100",
    "mem_shared.pct": "50",
    "peak_sustained_active": "31.14",
    "stalled_long_scoreboard_per_issue_active.ratio": "6.00",
    "stalled_wait_per_issue_active.ratio": "2.00",
    "per_issue_active.ratio": "0",
    "": "4,096",
}


def install(folder, monkeypatch, **settings):
    """Install it in `folder`, first on PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / "ncu"
    program.write_text(f"#!{sys.executable}\n" + Path(__file__).read_text())
    program.chmod(0o755)
    (folder / "ncu.json").write_text(json.dumps(settings))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def value(metric):
    return next(said for end, said in VALUES.items() if metric.endswith(end))


def unit(metric):
    if "per_second" in metric:
        return "byte/s"
    return UNITS.get(metric, "%" if ".pct" in metric else "inst")


def csv(metrics, launches):
    heads = ["ID", "Kernel Name", "Block Size", "Grid Size", "device__attribute_clock_rate"]
    rows = [[*heads, *metrics], [*[""] * len(heads), *map(unit, metrics)]]
    for number, (kernel, blocks) in enumerate(launches):
        where = [number, kernel, "(256, 1, 1)", f"({blocks}, 1, 1)", "1,980,000"]
        rows.append([*where, *map(value, metrics)])
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)


def main():
    settings = json.loads(Path(__file__).with_name("ncu.json").read_text())
    if sys.argv[1:] == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1)")
        return 0
    metrics, folder = sys.argv[sys.argv.index("--metrics") + 1].split(","), Path(sys.argv[-1])
    print("==PROF== Connected to process 1")
    if settings.get("fail"):
        print(f"==ERROR== {settings['fail']}")
        return settings.get("code", 1)
    sections, launches = [], []
    for index, work in enumerate(json.loads((folder / "work.json").read_text())["works"]):
        for spec in work["specs"]:
            own = settings["kernels"].get(spec["variant"], ["k_" + spec["stage"]])
            launches.append((MARK, len(sections) + 1))
            launches += [(kernel, 512) for kernel in [*settings.get("extra", []), *own]]
            error = settings.get("errors", {}).get(spec["variant"])
            sections.append({"work": index, "name": spec["stage"], "variant": spec["variant"],
                             "launched": own, "error": error})  # fmt: skip
    (folder / "sections.json").write_text(json.dumps(sections))
    text = csv(metrics, [one for one in launches if one[0] not in settings.get("lost", [])])
    print(text[: len(text) - settings.get("cut", 0)])
    print("==PROF== Disconnected from process 1", file=sys.stderr)
    return settings.get("end", 0)


if __name__ == "__main__":
    sys.exit(main())
