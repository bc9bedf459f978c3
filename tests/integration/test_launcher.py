"""`tfdp run` with real processes: small programs that need no TensorFlow, on loopback, each with a deadline."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tfdp.cli import launcher

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 30.0

# What every program below begins with.
PREAMBLE = """
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])

def remember(pid):  # so that the test can look whether it lives
    open(f"pid-{pid}", "w").close()

def sleep():  # after telling the test that all is set up
    open(f"asleep-{rank}", "w").close()
    time.sleep(120)

remember(os.getpid())
"""
IGNORE_SIGNALS = (
    "\nfor number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
)
START_A_SLEEPING_CHILD = """
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
remember(child.pid)
"""


class Launch:
    """A `tfdp run` in a folder of its own."""

    def __init__(self, folder, program, *options, arguments=(), num_workers=3, output=subprocess.PIPE, **environment):
        self.folder = folder
        (folder / "program.py").write_text(PREAMBLE + textwrap.dedent(program))
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfdp.cli.main", "run", "-n", str(num_workers), *options, "program.py", *arguments],
            cwd=folder,
            env={**inherited, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": "", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if output == subprocess.PIPE else output,
            start_new_session=True,
        )
        self.output, self.messages, self.status = "", "", None

    def finish(self):
        output, messages = self.process.communicate(timeout=DEADLINE_SECONDS)
        self.output = (output or b"").decode(errors="replace")
        self.messages = (messages or b"").decode(errors="replace")
        self.status = self.process.returncode
        return self

    def wait_until_asleep(self, num_workers):
        """Waits until as many workers have come to their `sleep()`."""
        wait_until(lambda: len(list(self.folder.glob("asleep-*"))) == num_workers)

    def pids(self):
        return [int(path.name.removeprefix("pid-")) for path in self.folder.glob("pid-*")]

    def living(self):
        return [pid for pid in self.pids() if lives(pid)]

    def log(self, rank):
        (path,) = self.folder.glob(f"tfdp-logs/*/worker-{rank}.log")
        return path.read_bytes()


@pytest.fixture(autouse=True)
def interrupts_are_not_ignored():
    """A shell lets what it starts in the background ignore them, and so do the processes that come of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def run(tmp_path):
    """Starts launches, and kills what they leave."""
    launches = []

    def start(program, *options, **settings):
        launches.append(Launch(tmp_path, program, *options, **settings))
        return launches[-1]

    yield start
    for launch in launches:
        for pid in [launch.process.pid, *launch.pids()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launch.process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder for launches of this process, which no cluster is around."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return tmp_path


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.parent.parent.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the deadline is over"
        time.sleep(0.02)


# Success


def test_all_workers_end_well_and_the_chief_is_shown(run):
    launch = run("print('worker', rank); print('error of', rank, file=sys.stderr)").finish()
    assert launch.status == 0
    assert launch.output == "worker 0\nerror of 0\n"
    assert re.fullmatch(r"tfdp run: 3 workers finished in \d+\.\d s; logs in tfdp-logs/[\d-]+\n", launch.messages)
    assert [launch.log(rank) for rank in range(3)] == [b"worker %d\nerror of %d\n" % (r, r) for r in range(3)]


def test_workers_agree_on_a_cluster_of_distinct_ports(run):
    launch = run("print(os.environ['TF_CONFIG'])").finish()
    configs = [json.loads(launch.log(rank)) for rank in range(3)]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2]
    (cluster,) = {json.dumps(config["cluster"]) for config in configs}
    assert len(set(json.loads(cluster)["worker"])) == 3


def test_arguments_pass_through_untouched(run):
    arguments = ["--help", "-n", "7", "", "two words", "--", "-m", "--show=none", b"\xff"]
    launch = run("print([os.fsencode(argument) for argument in sys.argv[1:]])", arguments=arguments).finish()
    assert launch.output == f"{[os.fsencode(argument) for argument in arguments]}\n"


def test_what_the_user_set_reaches_the_workers(run):
    names = ["OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL"]
    chosen = dict.fromkeys(names, "7")
    launch = run(f"print(*[os.environ[name] for name in {names}])", **chosen).finish()
    assert launch.output == "7 7 7 7\n"


def test_a_worker_that_ends_early_and_well_does_not_end_the_others(run):
    launch = run("time.sleep(0.0 if rank == 1 else 0.7); print('done')").finish()
    assert launch.status == 0
    assert [launch.log(rank) for rank in range(3)] == [b"done\n"] * 3


def test_the_chief_alone_reads_what_the_launcher_is_given(folder):
    program = "import sys; print(repr(sys.stdin.read()))"
    command = [sys.executable, "-m", "tfdp.cli.main", "run", "-n", "2", "--show", "all", sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    launch = subprocess.run(
        command,
        input=b"data",
        capture_output=True,
        check=True,
        env=environment,
        timeout=DEADLINE_SECONDS,
    )
    assert sorted(launch.stdout.splitlines()) == [b"[0] 'data'", b"[1] ''"]


# Output


def test_all_are_shown_in_whole_lines_with_their_rank(run):
    program = """
    for number in range(50):
        for piece in ("line ", str(number), " of ", str(rank), "\\n"):
            print(piece, end="", flush=True)
    print("no end", end="")
    """
    launch = run(program, "--show", "all").finish()
    lines = launch.output.splitlines()
    for rank in range(3):
        of_rank = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}] ")]
        assert of_rank == [f"line {number} of {rank}" for number in range(50)] + ["no end"]
    assert len(lines) == 3 * 51


def test_no_output_is_shown_but_all_is_kept(run):
    launch = run("print(rank)", "--show", "none").finish()
    assert launch.output == ""
    assert launch.log(2) == b"2\n"


def test_any_bytes_pass_and_are_kept(run):
    launch = run("sys.stdout.buffer.write(bytes(range(256)) * 1000)", num_workers=1)
    output, _ = launch.process.communicate(timeout=DEADLINE_SECONDS)
    assert output == launch.log(0) == bytes(range(256)) * 1000


def test_much_output_for_a_slow_reader_is_complete(run):
    launch = run("for _ in range(200): sys.stdout.buffer.write(b'x' * 49_999 + b'\\n')", num_workers=2)
    time.sleep(1.0)
    assert len(launch.finish().output) == 200 * 50_000
    assert launch.status == 0
    assert len(launch.log(1)) == 200 * 50_000


def test_a_reader_that_leaves_does_not_end_the_training(run):
    launch = run("for number in range(4): print(number, flush=True); time.sleep(0.2)", num_workers=1)
    launch.process.stdout.readline()
    launch.process.stdout.close()
    messages = launch.process.stderr.read().decode()
    assert launch.process.wait(DEADLINE_SECONDS) == 0
    assert "the output cannot be shown any more" in messages
    assert launch.log(0) == b"0\n1\n2\n3\n"


def test_logs_of_a_chosen_folder_are_not_overwritten(run, tmp_path):
    for word in ("first", "second"):
        assert run(f"print('{word}', rank)", "--log-dir", "logs", num_workers=2).finish().status == 0
    assert (tmp_path / "logs/worker-1.log").read_text() == "second 1\n"
    assert [path.read_text() for path in tmp_path.glob("logs/earlier/*/worker-1.log")] == ["first 1\n"]


def test_a_worker_may_close_its_output(run):
    launch = run("print('last', flush=True); os.close(1); os.close(2); time.sleep(0.5)", num_workers=2).finish()
    assert launch.status == 0
    assert launch.output == "last\n"


def test_a_daemon_that_keeps_the_output_open_is_not_waited_for(run):
    daemon = """
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"], start_new_session=True)
    remember(child.pid)
    print("worker is done")
    """
    began = time.monotonic()
    launch = run(daemon, num_workers=1).finish()
    assert launch.status == 0
    assert launch.output == "worker is done\n"
    assert time.monotonic() - began < 10.0


# On a terminal


def run_on_a_terminal(run, program, *options, **settings):
    """Returns the launch and what its terminal of 33 lines and 111 columns got."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    received = []

    def receive():
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal open any more
            while data := os.read(master, 65536):
                received.append(data)

    reader = threading.Thread(target=receive, daemon=True)
    reader.start()
    try:
        launch = run(program, *options, output=slave, TERM="xterm", **settings)
        os.close(slave)
        launch.finish()
        reader.join(timeout=DEADLINE_SECONDS)
    finally:
        os.close(master)
    return launch, b"".join(received).decode()


def test_the_chief_has_a_terminal_where_the_launcher_has_one(run):
    program = "print(sys.stdout.isatty(), sys.stderr.isatty(), tuple(os.get_terminal_size(1))) if rank == 0 else None"
    launch, received = run_on_a_terminal(run, program, num_workers=2)
    assert launch.status == 0
    assert received.startswith("True True (111, 33)\r\n")
    assert launch.log(0) == b"True True (111, 33)\n"


def test_a_progress_bar_comes_as_it_is_drawn(run):
    program = "print('\\r1/2', end='', flush=True); time.sleep(0.2); print('\\r2/2', end='', flush=True)"
    launch, received = run_on_a_terminal(run, program, num_workers=1)
    assert received.startswith("\r1/2\r2/2\r\ntfdp run: 1 worker finished")
    assert launch.log(0) == b"\r1/2\r2/2"


@pytest.mark.parametrize(("settings", "line"), [({}, "\x1b[36m[0]\x1b[0m hi\r\n"), ({"NO_COLOR": "1"}, "[0] hi\r\n")])
def test_ranks_are_coloured_on_terminals_unless_unwanted(run, settings, line):
    _, received = run_on_a_terminal(run, "print('hi')", "--show", "all", num_workers=1, **settings)
    assert received.startswith(line)


# Failure


def test_a_failure_ends_all_and_is_named_with_its_last_lines(run):
    program = f"""
    {START_A_SLEEPING_CHILD.strip().replace(chr(10), chr(10) + "    ")}
    for number in range(30): print("line", number, "of", rank, flush=True)
    time.sleep(0.4 if rank == 2 else 120)
    sys.exit(7)
    """
    began = time.monotonic()
    launch = run(program).finish()
    assert launch.status == 7
    assert time.monotonic() - began < 8.0
    assert len(launch.pids()) == 6 and not launch.living()
    assert "worker 2 failed (exit status 7); ending the other 2." in launch.messages
    assert "the end of the output of worker 2:\n  | line 10 of 2\n" in launch.messages
    assert "  | line 29 of 2\n" in launch.messages
    assert "of 1\n" not in launch.messages


def test_workers_that_ignore_sigterm_are_killed_after_the_grace(run):
    program = IGNORE_SIGNALS + START_A_SLEEPING_CHILD + "time.sleep(0.5 if rank == 1 else 120); sys.exit(3)"
    launch = run(program, "--grace", "0.5").finish()
    assert launch.status == 3
    assert len(launch.pids()) == 6 and not launch.living()


def test_workers_have_the_grace_to_end_in_order(run):
    program = """
    def save(number, frame): time.sleep(0.3); print("saved", flush=True); sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    time.sleep(0.5 if rank == 1 else 120)
    sys.exit(1)
    """
    launch = run(program, num_workers=2).finish()
    assert launch.status == 1
    assert launch.output == "saved\n"


def test_a_worker_killed_by_a_signal_gives_its_status(run):
    launch = run("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(120)").finish()
    assert launch.status == 137
    assert "worker 1 failed (killed by SIGKILL" in launch.messages
    assert not launch.living()


def test_the_worker_that_failed_first_is_named_though_its_peers_follow(run):
    program = """
    time.sleep(0.3 if rank == 1 else 0.6)
    sys.exit("the cause" if rank == 1 else "UnavailableError: Connection reset by peer")
    """
    launch = run(program).finish()
    assert launch.status == 1
    assert "worker 1 failed first (exit status 1)" in launch.messages
    assert "  | the cause\n" in launch.messages


def test_what_a_worker_left_in_the_background_ends_with_the_launch(run):
    launch = run(START_A_SLEEPING_CHILD, num_workers=2).finish()
    assert launch.status == 0
    assert len(launch.pids()) == 4 and not launch.living()


def test_a_program_without_an_interpreter_is_explained(folder):
    (folder / "script").write_text("#!/no/such/interpreter\n")
    (folder / "script").chmod(0o755)
    result = launcher.launch(["./script"], num_workers=1, show="none")
    assert result.exit_status == 127
    assert "such as #!/bin/sh" in result.outcomes[0].last_lines[-1]


# Signals to the launcher


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=str,
)
def test_a_signal_ends_all_workers(run, number, status):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored where the tests run, as under nohup, and so by what they start")
    launch = run(START_A_SLEEPING_CHILD + "sleep()")
    launch.wait_until_asleep(3)
    launch.process.send_signal(number)
    launch.finish()
    assert launch.status == status
    assert not launch.living()
    assert "ended 3 workers after " in launch.messages
    assert f"on {number.name}; logs in tfdp-logs/" in launch.messages


def test_ctrl_c_reaches_the_program_as_an_interrupt(run):
    program = """
    try: sleep()
    except KeyboardInterrupt: print("interrupted", flush=True)
    """
    launch = run(program, num_workers=2)
    launch.wait_until_asleep(2)
    launch.process.send_signal(signal.SIGINT)
    assert launch.finish().output == "interrupted\n"
    assert launch.status == 130


def test_a_second_ctrl_c_kills_at_once(run):
    launch = run(IGNORE_SIGNALS + "sleep()", "--grace", "100")
    launch.wait_until_asleep(3)
    launch.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert launch.process.poll() is None
    launch.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    launch.finish()
    assert launch.status == 130
    assert time.monotonic() - began < 5.0
    assert not launch.living()


def test_ctrl_c_works_while_nobody_reads_the_output(run):
    launch = run("while True: sys.stdout.buffer.write(b'x' * 100_000)", "--grace", "1", num_workers=2)
    wait_until(lambda: len(launch.pids()) == 2)
    time.sleep(0.5)
    launch.process.send_signal(signal.SIGINT)
    launch.process.wait(timeout=10.0)  # without reading
    assert launch.process.returncode == 130
    assert not launch.living()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills the children of a killed process")
def test_workers_die_with_a_launcher_that_is_killed(run):
    launch = run(IGNORE_SIGNALS + "sleep()")
    launch.wait_until_asleep(3)
    launch.process.kill()
    wait_until(lambda: not launch.living())


# Workers that do not come


def test_workers_that_do_not_come_are_named(run):
    program = """
    print("hello from", rank, flush=True)
    if rank != 1: open(os.environ["TFDP_READY_FILE"] + ".waiting", "w").close()
    time.sleep(120)
    """
    launch = run(program, "--start-timeout", "1.5").finish()
    assert launch.status == 1
    assert "Received: nothing from worker 1." in launch.messages
    assert "  | hello from 1\n" in launch.messages
    assert "raise `--start-timeout`" in launch.messages
    assert not launch.living()
    assert not list(launch.folder.glob("tfdp-logs/*/.ready*"))


def test_a_worker_that_ended_before_it_came_is_named(run):
    program = """
    if rank == 2: sys.exit(0)
    open(os.environ["TFDP_READY_FILE"] + ".waiting", "w").close()
    time.sleep(120)
    """
    launch = run(program, TFDP_START_TIMEOUT="1.5").finish()
    assert launch.status == 1
    assert "Received: nothing from worker 2." in launch.messages


def test_workers_that_come_may_train_for_longer_than_the_timeout(run):
    program = """
    for suffix in (".waiting", ""):
        open(os.environ["TFDP_READY_FILE"] + suffix, "w").close()
    time.sleep(2.0)
    """
    assert run(program, "--start-timeout", "1.5").finish().status == 0


def test_a_program_without_a_strategy_has_no_start_timeout(run):
    assert run("time.sleep(1.0)", "--start-timeout", "0.1").finish().status == 0


# From Python


def test_a_launch_from_python_tells_how_it_went(folder, capsys):
    said = []
    program = "import os, sys; print('rank', os.environ['RANK'], os.environ['MINE']); sys.exit(int(os.environ['RANK']))"
    result = launcher.launch(
        [sys.executable, "-c", program],
        num_workers=2,
        log_dir="logs",
        environment={**os.environ, "MINE": "yes"},
        say=said.append,
    )
    assert (result.exit_status, result.failed_rank, result.log_dir) == (1, 1, folder / "logs")
    assert 0.0 < result.seconds < DEADLINE_SECONDS
    assert result.outcomes[1].last_lines == ("rank 1 yes",)
    assert capsys.readouterr().out == "rank 0 yes\n"
    assert said == []


def test_a_launch_from_another_thread_works(folder):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(launcher.launch([sys.executable, "-c", "1"], num_workers=2, show="none"))
    )
    thread.start()
    thread.join(timeout=DEADLINE_SECONDS)
    assert [result.exit_status for result in results] == [0]


def test_a_launch_leaves_signals_and_descriptors_as_they_were(folder):
    def state():
        return signal.getsignal(signal.SIGINT), sorted(os.listdir("/dev/fd"), key=int)

    launcher.launch([sys.executable, "-c", "1"], num_workers=1, show="none")
    before = state()
    launcher.launch([sys.executable, "-c", "1"], num_workers=3, show="none")
    assert state() == before
