"""What the command line decides, says and refuses, without starting a worker."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tfdp import __version__
from tfdp.cli import launcher
from tfdp.cli.cluster import check_not_nested, free_ports, tf_config, worker_environment
from tfdp.cli.command import check_program, worker_command
from tfdp.cli.devices import check_gpus, gpus_of_worker, visible_gpus
from tfdp.cli.environment import ALLOCATOR_SETTINGS, fast_settings, printable_settings, settings_in_force
from tfdp.cli.errors import LaunchError
from tfdp.cli.logs import make_log_dir
from tfdp.cli.main import app
from tfdp.cli.outcome import Outcome, exit_status, first_failure, last_lines
from tfdp.cli.prefix import LinePrefixer
from tfdp.cli.report import report
from tfdp.cli.result import LaunchResult
from tfdp.cli.screen import Screen, give_up_after
from tfdp.cli.start_timeout import StartWatch, late_ranks


@pytest.fixture(autouse=True)
def no_cluster_around(monkeypatch, tmp_path):
    """Takes the cluster and the GPUs of the machine that runs the tests out of the way."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TFDP_START_TIMEOUT", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


def tfdp(*arguments: str, **environment: str):
    """Runs the command line in this process, on a wide screen without colours."""
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", **environment}).invoke(app, arguments)


def settings(**changes):
    return fast_settings(**{"num_workers": 1, "num_cores": 1, "gpus_visible": False, "glibc": True, **changes})


def environment_of_worker(environment=None, **changes):
    defaults = {
        "rank": 1,
        "ports": (5001, 5002, 5003),
        "settings": {},
        "start_timeout_seconds": 60.0,
        "log_dir": Path("/logs"),
    }
    return worker_environment(environment or {}, **{**defaults, **changes})


# Ports and TF_CONFIG


def test_ports_are_free_and_distinct():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_every_worker_gets_the_same_cluster_and_its_own_index():
    configs = [json.loads(tf_config([5001, 5002], rank)) for rank in range(2)]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": rank} for rank in range(2)]
    assert configs[0]["cluster"] == configs[1]["cluster"] == {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}


@pytest.mark.parametrize("config", [None, "", "{}", '{"cluster": {}}', '{"cluster": {"worker": []}}', "no json", "[1]"])
def test_a_tf_config_without_workers_is_no_cluster(config):
    check_not_nested({} if config is None else {"TF_CONFIG": config})


def test_a_cluster_inside_another_is_refused_with_a_remedy():
    with pytest.raises(LaunchError, match=r"must not run inside another cluster.*a:1.*`unset TF_CONFIG`"):
        check_not_nested({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'})


# The environment of a worker


def test_a_worker_is_told_its_place():
    environment = environment_of_worker()
    assert {name: environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
    }
    assert environment["TF_CONFIG"] == tf_config([5001, 5002, 5003], 1)
    assert environment["TFDP_READY_FILE"] == "/logs/.ready.1"
    assert environment["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize(("seconds", "text"), [(60.0, "60"), (0.5, "0.5"), (1_000_000.0, "1000000"), (1e400, "inf")])
def test_the_start_timeout_is_passed_on_as_a_plain_number(seconds, text):
    assert environment_of_worker(start_timeout_seconds=seconds)["TFDP_START_TIMEOUT"] == text


def test_what_the_user_set_stays():
    chosen = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "7", "OTHER": "x"}
    environment = environment_of_worker(chosen, settings={"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"})
    assert chosen.items() <= environment.items()
    assert environment["MALLOC_ARENA_MAX"] == "1"


def test_the_place_of_an_outer_launcher_does_not_reach_the_worker():
    assert environment_of_worker({"RANK": "9", "WORLD_SIZE": "10"})["RANK"] == "1"


def test_without_devices_per_worker_the_program_decides():
    environment = environment_of_worker(gpus=("0", "1", "2"))
    assert "TFDP_DEVICES_PER_WORKER" not in environment
    assert "CUDA_VISIBLE_DEVICES" not in environment


def test_each_worker_sees_gpus_of_its_own():
    seen = [
        environment_of_worker(rank=rank, gpus=("4", "5", "6", "7", "8", "9"), devices_per_worker=2) for rank in range(3)
    ]
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in seen] == ["4,5", "6,7", "8,9"]
    assert {environment["TFDP_DEVICES_PER_WORKER"] for environment in seen} == {"2"}


def test_devices_per_worker_without_gpus_leaves_cuda_alone():
    assert "CUDA_VISIBLE_DEVICES" not in environment_of_worker(devices_per_worker=2)


# GPUs


@pytest.mark.parametrize(
    ("chosen", "gpus"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", ("0",)),
        ("3, 1", ("3", "1")),
        ("2,-1,3", ("2",)),
        ("GPU-8932f937,MIG-1c2d/1/0", ("GPU-8932f937", "MIG-1c2d/1/0")),
    ],
)
def test_visible_gpus_are_read_as_cuda_reads_them(chosen, gpus):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == gpus


def test_gpus_are_counted_by_their_device_files(tmp_path):
    for name in ("nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1")
    assert visible_gpus({}, tmp_path / "none") == ()


def test_slices_of_gpus_are_disjoint():
    gpus = [str(index) for index in range(8)]
    slices = [gpus_of_worker(gpus, rank, 2) for rank in range(4)]
    assert [gpu for part in slices for gpu in part] == gpus


def test_too_few_gpus_are_refused_with_their_number():
    with pytest.raises(LaunchError, match=r"need 4 GPUs\. Received: 3 visible GPUs \(0, 1, 2\)\. Lower `-n`"):
        check_gpus(("0", "1", "2"), num_workers=2, devices_per_worker=2)


@pytest.mark.parametrize(("gpus", "devices"), [((), 8), (("0",), None), (("0", "1", "2", "3"), 2)])
def test_enough_gpus_or_none_are_fine(gpus, devices):
    check_gpus(gpus, num_workers=2, devices_per_worker=devices)


# Settings


@pytest.mark.parametrize(("num_workers", "num_cores", "threads"), [(1, 8, "8"), (2, 8, "4"), (3, 8, "2"), (4, 2, "1")])
def test_workers_share_the_cores(num_workers, num_cores, threads):
    chosen = settings(num_workers=num_workers, num_cores=num_cores)
    assert chosen["TF_NUM_INTRAOP_THREADS"] == chosen["OMP_NUM_THREADS"] == threads
    assert int(chosen["TF_NUM_INTEROP_THREADS"]) >= 2


def test_threads_are_left_to_tensorflow_where_there_are_gpus():
    assert not any("THREADS" in name for name in settings(gpus_visible=True))


def test_only_glibc_is_tamed():
    assert ALLOCATOR_SETTINGS.items() <= settings(glibc=True).items()
    assert not any("MALLOC" in name for name in settings(glibc=False))


def test_the_value_in_force_is_the_users():
    assert settings_in_force({"A": "1", "B": "2"}, {"B": "9", "C": "3"}) == {"A": "1", "B": "9"}


def test_a_value_with_blanks_is_not_printed_but_inherited():
    assert printable_settings({"A": "1", "B": "4 2", "C": "a\tb", "D": ""}) == ["A=1", "D="]


# Commands


def test_a_python_file_runs_under_this_python(tmp_path):
    Path("train.py").touch()
    assert worker_command("train.py", ["--help", "-n", ""]) == [sys.executable, "-u", "train.py", "--help", "-n", ""]


def test_a_module_runs_under_this_python():
    assert worker_command("json.tool", ["-h"], module=True) == [sys.executable, "-u", "-m", "json.tool", "-h"]


def test_a_module_of_the_current_folder_is_found_without_importing_it():
    Path("own_module_of_the_folder.py").write_text("raise SystemExit")
    assert worker_command("own_module_of_the_folder", module=True)[-1] == "own_module_of_the_folder"


@pytest.mark.parametrize(
    ("target", "module", "message"),
    [
        ("nothing.py", False, r"file to run must exist\. Received: 'nothing\.py'\. Check the path"),
        ("no_such_module", True, r"must be one that Python finds\. Received: 'no_such_module'\. Install it"),
        ("train.py", True, r"Received: 'train\.py'\. Leave out `-m`"),
        ("", True, "must be one that Python finds"),
        (".relative", True, "must be one that Python finds"),
    ],
)
def test_a_file_or_module_that_does_not_exist_is_refused(target, module, message):
    with pytest.raises(LaunchError, match=message):
        worker_command(target, module=module)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("no-such-program", "Received: 'no-such-program'. Check its name."),
        ("plain", "For the one in this folder write ./plain"),
        ("./plain", "chmod +x ./plain"),
        ("folder", "Check its name"),
        ("", "Check its name"),
    ],
)
def test_a_program_that_cannot_run_is_refused_with_a_remedy(program, message):
    Path("plain").touch()
    Path("folder").mkdir()
    with pytest.raises(LaunchError, match=re.escape(message)):
        check_program(program, os.environ)


def test_a_program_is_looked_for_on_the_path_of_the_worker(tmp_path):
    program = tmp_path / "own-program"
    program.touch(mode=0o755)
    check_program("own-program", {"PATH": str(tmp_path)})
    check_program("./own-program", {"PATH": ""})
    with pytest.raises(LaunchError):
        check_program("own-program", {"PATH": "/nowhere"})


# Logs


def test_two_folders_of_logs_are_never_the_same():
    first, second = make_log_dir(None), make_log_dir(None)
    assert first != second
    assert first.parent == second.parent == Path("tfdp-logs").absolute()


def test_earlier_logs_in_a_chosen_folder_are_set_aside():
    folder = make_log_dir(Path("mine"))
    (folder / "worker-0.log").write_text("precious")
    assert make_log_dir(Path("mine")) == folder
    assert not (folder / "worker-0.log").exists()
    assert [path.read_text() for path in folder.rglob("worker-0.log")] == ["precious"]


def test_a_folder_that_cannot_be_made_is_refused():
    Path("file").touch()
    with pytest.raises(
        LaunchError, match=r"Received: 'file/logs' \(Not a directory\)\. Choose another with `--log-dir`"
    ):
        make_log_dir(Path("file/logs"))


# Outcomes


def outcomes(*exits, **details):
    return [Outcome(rank, exit_code, seconds) for rank, (exit_code, seconds) in enumerate(exits)]


@pytest.mark.parametrize(
    ("exits", "status"),
    [
        ([(0, 1.0), (0, 2.0)], 0),
        ([(0, 1.0), (3, 2.0)], 3),
        ([(5, 2.0), (3, 1.0)], 3),
        ([(-9, 2.0), (3, 1.0)], 3),
        ([(-11, 1.0), (0, 0.5)], 139),
        ([(1, 1.0), (-9, 1.0)], 137),
        ([(None, 1.0), (4, 1.0)], 4),
    ],
)
def test_the_exit_status_is_that_of_the_first_failure(exits, status):
    assert exit_status(outcomes(*exits)) == status


def test_a_worker_that_the_launcher_ended_has_not_failed():
    assert first_failure([Outcome(0, -15, 1.0, ended=True), Outcome(1, 0, 1.0)]) is None


def test_a_worker_that_complains_of_a_lost_peer_follows_the_peer():
    complaint = ("tensorflow.python.framework.errors_impl.UnavailableError: Connection reset by peer",)
    cause = Outcome(1, 1, 3.0, ("ValueError: my own mistake",))
    assert first_failure([Outcome(0, 1, 2.5, complaint), cause, Outcome(2, -6, 2.6, complaint)]) is cause


def test_of_several_complaints_the_first_counts():
    complaint = ("Connection reset by peer",)
    assert first_failure([Outcome(0, 1, 2.5, complaint), Outcome(1, 2, 2.0, complaint)]).rank == 1


def test_the_last_lines_are_what_a_screen_would_show():
    output = b"\x1b[32mgreen\x1b[0m\nbar 1\rbar 2\b\b\b\b\r\n\x1b]0;title\x07bell\x07 \xff\n\n"
    assert last_lines(output) == ("green", "bar 2", "bell �")


def test_the_last_lines_are_few_and_short():
    lines = last_lines(b"\n".join(b"%d" % number for number in range(100)) + b"x" * 1000)
    assert len(lines) == 20
    assert len(lines[-1]) < 500
    assert last_lines(b"") == last_lines(b"\n\n") == ()


# Reports


def result(*ends, **details):
    values = {"exit_status": 0, "failed_rank": None, "seconds": 12.34, "log_dir": Path("logs").absolute()}
    return LaunchResult(**{**values, "outcomes": tuple(ends), **details})


def test_success_is_one_line():
    line = report(result(Outcome(0, 0, 12.0), Outcome(1, 0, 12.3)))
    assert line == "tfdp run: 2 workers finished in 12.3 s; logs in logs"
    assert report(result(Outcome(0, 0, 12.0))).startswith("tfdp run: 1 worker finished")


def test_a_failure_is_named_with_the_end_of_its_output():
    ends = (Outcome(0, -15, 4.0, ended=True), Outcome(1, 7, 3.0, ("one", "two")), Outcome(2, 1, 3.5))
    assert report(result(*ends, exit_status=7, failed_rank=1)).splitlines() == [
        "tfdp run: the end of the output of worker 1:",
        "  | one",
        "  | two",
        "tfdp run: worker 1 failed first (exit status 7) after 3.0 s, worker 2 after it (exit status 1), the other one "
        "was ended; logs in logs",
    ]


def test_a_signal_is_named_with_its_usual_cause():
    text = report(result(Outcome(0, -9, 3.0), exit_status=137, failed_rank=0))
    assert "worker 0 printed nothing" in text
    assert "killed by SIGKILL, as the system does when memory runs out" in text
    assert str(Outcome(0, -signal.SIGSEGV, 1.0)) == "killed by SIGSEGV"
    assert str(Outcome(0, -99, 1.0)) == "killed by signal 99"


def test_an_interrupted_launch_says_by_what():
    text = report(result(Outcome(0, -2, 3.0, ended=True), exit_status=130, signal_number=signal.SIGINT))
    assert text == "tfdp run: ended 1 worker after 12.3 s on SIGINT; logs in logs"


def test_late_workers_are_named_with_a_remedy():
    ends = [Outcome(rank, -9, 3.0, (f"line of {rank}",), ended=True) for rank in range(4)]
    text = report(result(*ends, exit_status=1, failed_rank=1, late_ranks=(1, 3), start_timeout_seconds=60.0))
    assert "within the start timeout of the first, 60 s. Received: nothing from workers 1 and 3." in text
    assert "line of 1" in text and "line of 3" in text and "line of 0" not in text
    assert "raise `--start-timeout`" in text


def test_logs_elsewhere_are_named_by_their_whole_path(tmp_path):
    assert report(result(Outcome(0, 0, 1.0), log_dir=Path("/elsewhere"))).endswith("logs in /elsewhere")


# Start timeout


@pytest.mark.parametrize(
    ("waiting", "ready", "late"),
    [
        ((), (), ()),
        ((0,), (), (1, 2)),
        ((0, 2), (), (1,)),
        ((0, 1, 2), (), ()),
        ((0, 1, 2), (0, 1, 2), ()),
        ((0, 1), (0, 1), ()),
        ((0, 1), (1,), (2,)),
    ],
)
def test_late_are_those_that_others_wait_for(waiting, ready, late):
    assert late_ranks(3, waiting=waiting, ready=ready) == late


def test_a_program_that_makes_no_strategy_is_never_late(tmp_path):
    assert StartWatch(tmp_path, 2, timeout_seconds=1e-9).late() == ()


def test_files_of_an_earlier_launch_do_not_count(tmp_path):
    (tmp_path / ".ready.0.waiting").touch()
    assert StartWatch(tmp_path, 2, timeout_seconds=1e-9).late() == ()
    assert not list(tmp_path.iterdir())


# Prefixes


def test_every_whole_line_gets_the_rank():
    prefixer = LinePrefixer(3, colour=False)
    assert prefixer.feed(b"one\ntw", 0.0) == b"[3] one\n"
    assert prefixer.feed(b"o\r\n\n", 0.0) == b"[3] two\n[3] \n"
    assert prefixer.finish() == b""


def test_a_line_without_end_comes_out_at_the_end():
    prefixer = LinePrefixer(0, colour=False)
    assert prefixer.feed(b"rest", 0.0) == b""
    assert prefixer.finish() == b"[0] rest\n"


def test_a_progress_bar_becomes_a_line_a_second():
    prefixer = LinePrefixer(0, colour=False)
    shown = [prefixer.feed(b"\b\b\b\b\b\r%d/40 .." % step, now=step / 10) for step in range(40)]
    assert b"".join(shown).split(b"\n") == [b"[0] 0/40 ..", b"[0] 10/40 ..", b"[0] 20/40 ..", b"[0] 30/40 ..", b""]
    assert prefixer.feed(b"\r40/40 done\n", 4.0).endswith(b"[0] 40/40 done\n")


def test_pieces_of_any_size_give_the_same_lines():
    output = "Epoch 1\r\n\x1b[1m1/2\x1b[0m\b\b\b\r2/2 ünï\x1b[2K\n\nend".encode()
    whole = LinePrefixer(0, colour=False)
    pieces = LinePrefixer(0, colour=False)
    expected = whole.feed(output, 0.0) + whole.finish()
    assert b"".join(pieces.feed(bytes([byte]), 0.0) for byte in output) + pieces.finish() == expected
    assert "[0] 2/2 ünï\n".encode() in expected


def test_an_endless_line_is_cut():
    assert len(LinePrefixer(0, colour=False).feed(b"x" * 100_000, 0.0)) > 100_000


def test_a_coloured_rank_ends_its_colour():
    assert LinePrefixer(0, colour=True).feed(b"a\n", 0.0) == b"\x1b[36m[0]\x1b[0m a\n"


# Screens


def test_a_screen_writes_all_in_order():
    stream = io.StringIO()
    screen = Screen(stream)
    text = "".join(f"{number} é\n" for number in range(1000))
    for byte in text.encode():
        screen.write(bytes([byte]))
    screen.drain(give_up=give_up_after(10.0))
    assert stream.getvalue() == text


def test_a_screen_that_stands_still_holds_nobody_up():
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as output, os.fdopen(writer, "w") as stream:
        screen = Screen(stream)
        screen.write(b"x" * (3 << 20))
        assert screen.full
        screen.drain(give_up=give_up_after(0.05))
        assert len(output.read(3 << 20)) == 3 << 20
        screen.drain(give_up=give_up_after(10.0))
        assert not screen.full


def test_a_screen_that_is_gone_takes_everything():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        screen = Screen(stream)
        screen.write(b"lost")
        screen.drain(give_up=give_up_after(10.0))
        screen.write(b"lost")
    assert isinstance(screen.error, BrokenPipeError)
    Screen(None).write(b"nowhere")


# The command line


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("env", "--help")])
def test_help_exits_well(arguments):
    outcome = tfdp(*arguments)
    assert outcome.exit_code == 0
    assert "Usage: tfdp" in outcome.output or "Usage: root" in outcome.output


def test_help_of_run_names_every_option():
    text = tfdp("run", "--help").output
    options = (
        "-n",
        "-m",
        "--devices-per-worker",
        "--show",
        "--log-dir",
        "--grace",
        "--start-timeout",
        "TARGET",
        "ARGS",
    )
    assert [option for option in options if option not in text] == []


def test_the_version_is_printed():
    assert tfdp("--version").output == f"tfdp {__version__}\n"


def test_env_prints_what_workers_get_with_the_users_values():
    lines = tfdp("env", "-n", "2", MALLOC_ARENA_MAX="5", OMP_NUM_THREADS="3").output.splitlines()
    printed = dict(line.split("=") for line in lines)
    assert printed["OMP_NUM_THREADS"] == "3"
    assert printed["TF_CPP_MIN_LOG_LEVEL"]
    assert int(printed["TF_NUM_INTEROP_THREADS"]) >= 2
    assert not any(re.search(r"\s", line) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "-n", "0", "x.py"), "--num-workers"),
        (("run", "-n", "two", "x.py"), "--num-workers"),
        (("run", "x.py"), "Missing option"),
        (("run", "-n", "2"), "Missing argument 'TARGET'"),
        (("run", "-n", "2", "--bogus", "x.py"), "No such option: --bogus"),
        (("run", "-n", "2", "--show", "some", "x.py"), "'chief', 'all', 'none'"),
        (("run", "-n", "2", "--devices-per-worker", "0", "x.py"), "--devices-per-worker"),
        (("run", "-n", "2", "--grace", "-1", "x.py"), "--grace"),
        (("run", "-n", "2", "--start-timeout", "0", "true"), "start timeout must be above 0 seconds. Received: 0.0."),
        (("run", "-n", "2", "x.py"), "The Python file to run must exist. Received: 'x.py'."),
        (("run", "-n", "2", "-m", "no_such_module"), "must be one that Python finds. Received: 'no_such_module'."),
        (("run", "-n", "2", "no-such-program"), "must be on PATH or be the path of a program."),
        (("run", "-n", "2", "--log-dir", "/dev/null/logs", "true"), "The folder of logs must be one that can be made"),
        (("env", "-n", "0"), "--num-workers"),
        (("bogus",), "No such command 'bogus'"),
    ],
)
def test_a_mistake_is_explained_and_exits_with_2(arguments, message):
    outcome = tfdp(*arguments)
    assert message in " ".join(outcome.output.replace("│", " ").split())  # the terminal's width breaks lines anywhere
    assert outcome.exit_code == 2
    assert not Path("tfdp-logs").exists()


def test_a_cluster_around_the_launcher_is_refused():
    outcome = tfdp("run", "-n", "2", "true", TF_CONFIG='{"cluster": {"worker": ["a:1", "b:1"]}}')
    assert "must not run inside another cluster" in outcome.output
    assert outcome.exit_code == 2


def test_too_few_gpus_are_refused_before_anything_starts():
    outcome = tfdp("run", "-n", "3", "--devices-per-worker", "1", "true", CUDA_VISIBLE_DEVICES="0,1")
    assert "3 workers with 1 devices each need 3 GPUs. Received: 2 visible GPUs (0, 1)." in outcome.output
    assert outcome.exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "number of workers must be at least 1. Received: 0."),
        ({"devices_per_worker": 0}, "number of devices of a worker must be at least 1. Received: 0."),
        ({"show": "some"}, "`show` must be one of chief, all, none. Received: show='some'."),
        ({"grace_seconds": float("nan")}, "grace must be 0 seconds or more. Received: nan."),
        ({"start_timeout_seconds": 0.0}, "start timeout must be above 0 seconds. Received: 0.0."),
        ({"command": []}, "`command` must name a program to run."),
        ({"command": ["no-such-program"]}, "must be on PATH or be the path of a program."),
    ],
)
def test_launch_refuses_what_it_cannot_do(options, message):
    options = {"command": ["true"], "num_workers": 1, **options}
    with pytest.raises(LaunchError, match=re.escape(message)):
        launcher.launch(options.pop("command"), **options)


def test_the_launcher_does_not_import_tensorflow():
    program = (
        "import sys, tfdp.cli.main; print([name for name in ('tensorflow', 'keras', 'numpy') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(launcher.__file__).parents[2])}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert printed.stdout.strip() == "[]"
