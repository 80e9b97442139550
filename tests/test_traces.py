"""Traces and tables of profilers go the whole way: imported, stored, and explained against each
other, down to the kernel and the shapes that it worked on.
"""

import csv
import json
import subprocess
import sys

from notebooks import ROOT

NSYS = """\
Executing 'cuda_gpu_kern_sum' stats report

 Time (%)  Total Time (ns)  Instances  Avg (ns)   Name
 --------  ---------------  ---------  ---------  ----------------
     80.0  {gemm}  400  1000000.0  sm90_gemm_bf16_128x128
     20.0  100000000  200  500000.0  vectorized_add

"""


def event(category: str, name: str, begin_us: float, time_us: float, **args) -> dict:
    named = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
    return named | {"ts": begin_us, "dur": time_us, "args": args}


def trace(longer_us: float, idle_us: float) -> dict:
    """Two steps of two products of matrices; `idle_us` before the second product of each."""
    events, now = [], 1000.0
    for step in range(2):
        whole = 400.0 + longer_us + idle_us
        events.append(event("user_annotation", f"ProfilerStep#{step}", now, whole))
        for k, time_us in enumerate((200.0, 200.0 + longer_us)):
            number, shapes = 10 * step + k + 1, [[64, 128], [128, 512 * (k + 1)]]
            told = {"External id": number, "Input Dims": shapes}
            begin = now + k * (200.0 + idle_us)
            events.append(event("cpu_op", "aten::mm", begin, 5.0, **told))
            card = {"External id": number, "correlation": 900 + number, "device": 0}
            events.append(event("kernel", "sm90_gemm_128x128", begin, time_us, **card))
        now += whole
    # before and after the steps: no part of them
    for begin in (0.0, now + 5000.0):
        events.append(event("kernel", "warm_up", begin, 100.0, device=0))
    cards = [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85_000_000_000}]
    info = {"backend": "nccl", "rank": 0, "world_size": 1}
    named = {"schemaVersion": 1, "deviceProperties": cards, "distributedInfo": info}
    return named | {"traceEvents": events}


def llmbench(*words: str) -> str:
    command = [sys.executable, "-m", "llmbench.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(folder, files: dict[str, str]) -> list[str]:
    """The ids of the runs, in the order of the files."""
    found = []
    for name, text in files.items():
        (folder / name).write_text(text)
        llmbench("import", str(folder / name), "--results", str(folder / "results"))
        stem = name.partition(".")[0]
        found += [p.name for p in (folder / "results/imported").glob(f"imported.{stem}*")]
    assert len(found) == len(files)
    return found


def explained(folder, a: str, b: str) -> dict:
    words = ("explain", a, b, "--results", str(folder / "results"))
    assert llmbench(*words).strip()
    return json.loads(llmbench(*words, "--format", "json"))


def test_two_traces_differ_by_a_kernel_of_a_shape(tmp_path):
    files = {f"{n}.json": json.dumps(trace(us, 0.0)) for n, us in (("short", 0.0), ("long", 80.0))}
    said = explained(tmp_path, *imported(tmp_path, files))
    first, other, *_ = said["kernels"]
    assert first["shapes"] == "64x128 128x1024" and abs(first["difference_s"] - 80e-6) < 1e-9
    assert other["shapes"] == "64x128 128x512" and abs(other["difference_s"]) < 1e-9
    assert abs(said["total"]["difference_s"] - 80e-6) < 1e-9


def test_two_traces_differ_by_the_gaps_between_their_kernels(tmp_path):
    files = {f"{n}.json": json.dumps(trace(0.0, us)) for n, us in (("full", 0.0), ("gaps", 90.0))}
    said = explained(tmp_path, *imported(tmp_path, files))
    parts = {cause["part"]: cause["difference"]["difference_s"] for cause in said["causes"]}
    assert next(iter(parts)) == "idle_s" and abs(parts["idle_s"] - 90e-6) < 2e-9, parts
    assert abs(sum(parts.values()) - said["total"]["difference_s"]) < 1e-9


def test_two_tables_of_kernels_are_compared_without_a_step(tmp_path):
    files = {f"{n}.txt": NSYS.format(gemm=t) for n, t in (("a", 400_000_000), ("b", 500_000_000))}
    said = explained(tmp_path, *imported(tmp_path, files))
    assert said["sentence"].endswith("only their kernels are compared") and said["total"] is None
    assert [k["kind"] for k in said["kernels"]] == ["sm90_gemm_bf16_#", "vectorized_add"]
    assert abs(said["kernels"][0]["difference_s"] - 0.1) < 1e-9


def test_the_page_of_traces_has_their_gaps_and_their_kernels(tmp_path):
    files = {f"{n}.json": json.dumps(trace(0.0, us)) for n, us in (("full", 0.0), ("gaps", 90.0))}
    names = imported(tmp_path, files)
    site = tmp_path / "site"
    llmbench("report", "--results", str(tmp_path / "results"), "--out", str(site))
    page = (site / "study-imported.html").read_text()
    assert "the device waiting for the host" in page and "Kinds of work" in page
    parts = (site / "data/imported/time_parts.csv").read_text().splitlines()
    idle = [float(row["idle_ms"]) for row in csv.DictReader(parts)]  # the slowest first
    assert abs(idle[0] - 0.09) < 1e-6 and abs(idle[1]) < 1e-6, idle
    kernels = (site / "data/imported/kernels.csv").read_text()
    assert all(f"{name},matrix products,sm90_gemm" in kernels for name in names)
    run = (site / f"runs/{names[0]}.html").read_text()
    assert "rank None" not in run and "No rank wrote its memory." in run
