"""How well models train under each compressor, and how many steps they need: `make convergence`.

Each workload is trained under each named compressor from several seeds, by replicas on logical CPU devices of one
process. Finished trainings go to a cache file at once, so that a run which is interrupted goes on where it stood. The
cache knows settings and versions but not the code of compressors: `--again` after a change of it. A whole run writes
docs/convergence.md and its plots; one of some names, seeds or workloads prints alone.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import convergence_workloads as workloads_lib
import keras
import tensorflow as tf
from convergence_figures import MEASURES, TARGET_SHARE, UNCOMPRESSED, Run, compare
from convergence_page import section, with_generated

from tfdp import compression

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "convergence.md"
CACHE = REPOSITORY / ".cache" / "convergence.jsonl"
NAMES = (
    *(UNCOMPRESSED, "bf16", "fp16", "e4m3", "e5m2", "int8", "int4", "sign", "qsgd", "tern_grad", "natural"),
    *("topk:0.01", "randomk:0.1", "dgc", "powersgd:4"),
)
NUM_SEEDS = {"accuracy": 10, "loss": 3}  # by the quality that is measured, for those that a rule binds
QUICK_NUM_SEEDS, QUICK_SHARE = 2, 5  # a fifth of the steps
PROCESS_SECONDS = 1800.0


class Job(NamedTuple):
    """What one process does; without seeds it measures the arithmetic of a step.

    Attributes:
        workload: its name.
        name: of the compressor.
        seeds: to train from.
        num_steps: of a training.
        settings: what results depend on.
    """

    workload: str
    name: str
    seeds: tuple[int, ...]
    num_steps: int
    settings: str


def settings(workload: str, name: str, num_steps: int) -> str:
    """Returns what the results of a training depend on, beside the code."""
    batch_size = workloads_lib.WORKLOADS[workload].batch_size
    versions = f"tensorflow {tf.__version__}, keras {keras.__version__}, python {platform.python_version()}"
    return f"{compression.get(name)!r}, {num_steps} steps of {batch_size}, {versions}"


def is_known(name: str) -> bool:
    """Returns whether `name` is one of a compressor; prints that it is left out, where it is not."""
    try:
        compression.get(name)
    except ValueError as error:
        print(f"left out: {name!r}: {error}")
        return False
    return True


def read_cache(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a cache file, the latest last; without a last line that was not written to its end."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def runs_in(records: Sequence[dict[str, Any]], job: Job) -> dict[int, Run]:
    """Returns the trainings of a job that are among the records, by seed."""
    trained = {record["seed"]: record for record in records if "seed" in record and _is_of(record, job)}
    return {
        seed: Run(*(trained[seed][key] for key in ("steps", "quality", "wire_bytes")))
        for seed in job.seeds
        if seed in trained
    }


def arithmetic_in(records: Sequence[dict[str, Any]], job: Job) -> float | None:
    """Returns the seconds of a step's arithmetic that are among the records."""
    key = "arithmetic_seconds"
    return next((record[key] for record in reversed(records) if key in record and _is_of(record, job)), None)


def _is_of(record: dict[str, Any], job: Job) -> bool:
    return all(record[key] == getattr(job, key) for key in ("workload", "name", "settings"))


def run_process(job: Job, cache: Path, num_threads: int) -> str:
    """Runs a job in a process of its own; returns why it failed, "" if it did not."""
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "TF_NUM_INTRAOP_THREADS": str(num_threads),
    }
    program = Path(__file__).with_name("convergence_training.py")
    argument = json.dumps({**job._asdict(), "cache": str(cache)})
    with tempfile.TemporaryFile() as output:
        try:
            status = subprocess.run(
                [sys.executable, program, argument],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=PROCESS_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"did not end in {PROCESS_SECONDS:.0f} s"
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    return "" if status == 0 else f"ended with status {status}: {lines[-1] if lines else ''}"


def run_all(jobs: Sequence[Job], cache: Path, num_processes: int) -> dict[tuple[str, str], str]:
    """Runs jobs, some at a time; returns why jobs failed, by workload and name."""
    num_threads = max((os.cpu_count() or 1) // num_processes, 1)
    failures = {}
    with concurrent.futures.ThreadPoolExecutor(num_processes) as pool:
        futures = {pool.submit(run_process, job, cache, num_threads): job for job in jobs}
        try:
            for count, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                job, reason = futures[future], future.result()
                print(f"{count} of {len(jobs)}: {job.workload} under {job.name} {reason}", file=sys.stderr, flush=True)
                if reason:
                    failures[job.workload, job.name] = reason
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def jobs_of(workload: str, names: Sequence[str], num_seeds: int | None, num_steps: int) -> list[Job]:
    """Returns a job for each compressor that is to train the workload; without `num_seeds` from as many as it needs."""
    described = workloads_lib.WORKLOADS[workload]
    if described.only:
        names = [name for name in names if name in described.only]
    return [
        Job(
            workload,
            name,
            tuple(range(num_seeds or seeds_needed(described.quality, name))),
            num_steps,
            settings(workload, name, num_steps),
        )
        for name in names
        if name not in described.left_out
    ]


def seeds_needed(quality: str, name: str) -> int:
    """Returns from how many seeds a compressor is trained: from one where no rule binds it."""
    bound = MEASURES[quality].bound
    return NUM_SEEDS[quality] if not bound or name in (UNCOMPRESSED, *bound) else 1


def train(jobs: Sequence[Job], cache: Path, *, known: Sequence[dict[str, Any]], num_processes: int) -> dict:
    """Trains what is not known yet; returns why trainings failed, by workload and name."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    if cache.exists() and not cache.read_bytes().endswith(b"\n"):  # else the next line would join a broken one
        cache.write_text("".join(json.dumps(record) + "\n" for record in read_cache(cache)))
    timings = [job._replace(seeds=()) for job in jobs if job.name == UNCOMPRESSED]
    timings = [job for job in timings if arithmetic_in(known, job) is None]
    missing = [job._replace(seeds=tuple(s for s in job.seeds if s not in runs_in(known, job))) for job in jobs]
    missing = sorted((job for job in missing if job.seeds), key=lambda job: -job.num_steps)
    return run_all(timings, cache, 1) | run_all(missing, cache, num_processes)  # nothing runs beside what is timed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=list(NAMES), help="compressors; 'none' joins them")
    parser.add_argument("--seeds", type=int, help="from how many seeds; else 10, for the transformer 3 or 1")
    every = list(workloads_lib.WORKLOADS)
    parser.add_argument("--workloads", nargs="+", choices=every, default=every)
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps, two seeds: to see that all runs")
    parser.add_argument("--again", action="store_true", help="train also what the cache has")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="at a time")
    parser.add_argument("--cache", type=Path, default=CACHE, help="file of finished trainings")
    parser.add_argument("--page", type=Path, help="to write to; docs/convergence.md for a whole run, else none")
    options = parser.parse_args()
    if (options.seeds is not None and options.seeds < 1) or options.processes < 1:
        parser.error("--seeds and --processes must be at least 1")

    names = [name for name in dict.fromkeys([UNCOMPRESSED, *options.names]) if is_known(name)]
    jobs = {}
    for workload in with_references(options.workloads):
        num_seeds = options.seeds or (QUICK_NUM_SEEDS if options.quick else None)
        num_steps = workloads_lib.WORKLOADS[workload].num_steps // (QUICK_SHARE if options.quick else 1)
        jobs[workload] = jobs_of(workload, names, num_seeds, num_steps)
    known = [] if options.again else read_cache(options.cache)
    all_jobs = [job for some in jobs.values() for job in some]
    failures = train(all_jobs, options.cache, known=known, num_processes=options.processes)

    page = options.page or (PAGE if is_whole(options) else None)
    text = report(jobs, names, failures, read_cache(options.cache), page)
    print(text)
    if page and not importlib.util.find_spec("matplotlib"):
        print("no plots: matplotlib is not installed", file=sys.stderr)
    if page:
        page.write_text(with_generated(page.read_text(), text))
        print(f"wrote {page}", file=sys.stderr)
    return 1 if failures else 0


def with_references(workloads: Sequence[str]) -> list[str]:
    """Returns the names of workloads, and before each that of the one that it is compared with."""
    pairs = [(workloads_lib.WORKLOADS[workload].reference or workload, workload) for workload in workloads]
    return list(dict.fromkeys(name for pair in pairs for name in pair))


def is_whole(options: argparse.Namespace) -> bool:
    """Returns whether everything is trained that there is, to its end."""
    are_all = set(NAMES) <= set(options.names) and set(workloads_lib.WORKLOADS) <= set(options.workloads)
    return are_all and options.seeds is None and not options.quick


def report(
    jobs: dict[str, list[Job]],
    names: Sequence[str],
    failures: dict[tuple[str, str], str],
    records: Sequence[dict[str, Any]],
    page: Path | None,
) -> str:
    """Returns the text about all workloads, and draws the plots that a page shows."""
    parts = [introduction()]
    for workload, of_workload in jobs.items():
        if not of_workload:
            continue
        described = workloads_lib.WORKLOADS[workload]
        reference = jobs.get(described.reference, of_workload)[:1]
        runs = {job.name: found for job in [*reference, *of_workload] if (found := runs_in(records, job))}
        notes = [f"{described.note}."] if described.note else []
        notes += [f"`{name}` is left out: {why}." for name, why in described.left_out.items() if name in names] + [
            f"`{name}`: a process {why}." for (where, name), why in failures.items() if where == workload
        ]
        seconds = arithmetic_in(records, reference[0]) if UNCOMPRESSED in runs else None
        if seconds is None:
            parts.append("\n".join(f"- {note}" for note in [f"The {workload} has no result to compare with.", *notes]))
            continue
        measure, image = MEASURES[described.quality], None
        if page and importlib.util.find_spec("matplotlib"):
            from convergence_plots import draw

            image = f"images/convergence_{workload.replace(' ', '_')}.png"
            draw(page.parent / image, measure, runs)
        parts.append(section(workload, compare(measure, runs, seconds), notes, image))
    return "\n\n".join(parts)


def introduction() -> str:
    """Returns where the figures come from."""
    return (
        f"Made on {os.cpu_count()} cores with TensorFlow {tf.__version__}, Keras {keras.__version__} and Python "
        f'{platform.python_version()}. ± is one standard error over seeds (0 for a single one). The quality of "steps '
        f'to" is what `{UNCOMPRESSED}` reaches after {TARGET_SHARE:.0%} of its steps, less the margin of the rule. In '
        f"the plots training with `{UNCOMPRESSED}` is grey, bands are two standard errors wide to each side, the "
        "number is the last one, and what is worse than the early training is cut off."
    )


if __name__ == "__main__":
    sys.exit(main())
