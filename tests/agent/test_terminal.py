"""What people and collectors see of a running agent: the terminal, the log, the summary, the first page."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
import urllib.request
from pathlib import Path

import pytest

from prontosched.agent.followers import ChangeLog
from prontosched.agent.http.auth import Access
from prontosched.cli.live import Screen, StatusLine, fitting, summary
from tests.agent.machine import Clock, Machine, make_agent, sample
from tests.agent.test_api import asking
from tests.agent.test_health import ticked
from tests.agent.test_loop import run
from tests.agent.test_offenders import Busy, watched
from tests.agent.test_process import address, ask, wait_for

STATUS = re.compile(
    r"(accepting|contended|refusing) \d+ s  CPU Ready [\d.]+ %  p \d\.\d\d .*refused [\d.]+ % of \d+ s"
)
FIELDS = {"time", "node", "state", "previous_state", "probability", "cpu_ready_percent", "reason"}


class Terminal:
    """`pronto` on a terminal of its own, 120 columns wide unless told otherwise; what it wrote so far is `text`."""

    def __init__(self, folder: Path, *arguments: str, term: str = "xterm", columns: int = 120) -> None:
        self.text = ""
        environment = {
            **os.environ,
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TERM": term,
        }
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "prontosched", *arguments], environment)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        os.set_blocking(self.master, False)

    def read(self) -> str:
        """Take what was written since."""
        try:
            while data := os.read(self.master, 65536):
                self.text += data.decode()
        except OSError:  # nothing more now, or the other side has closed
            pass
        return self.text

    def until(self, holds, seconds=60.0):
        """Read until the text holds what is asked."""
        wait_for(lambda: holds(self.read()), seconds)

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self) -> None:
        """End the process if it still runs."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)

    def ended(self, seconds=60.0) -> int:
        """Wait for the end; return the exit code."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()
            done, code = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.pid = 0
                self.read()
                return os.waitstatus_to_exitcode(code)
            time.sleep(0.02)
        raise AssertionError("it did not end")


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def go(*arguments, **given):
        opened.append(Terminal(tmp_path, *arguments, **given))
        return opened[-1]

    yield go
    for one in opened:
        one.close()


@pytest.fixture
def trace(tmp_path):
    """A calm minute, contention, and calm again, a row a second."""
    rows = ["timestamp,ready,utilisation,a,b"]
    for t in range(120):
        ready = 40.0 if 40 <= t < 60 else 0.5
        rows.append(f"{1000 + t},{ready},{ready + 10},{t % 7},{(t * 3) % 5}")
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def status_lines(text):
    """The status lines that were drawn, without colours."""
    draws = re.sub(r"\x1b\[\d+m", "", text).split("\r\x1b[K")
    return [draw for draw in draws if STATUS.match(draw)]


def replaying(trace):
    return ("--trace", trace, "--interval", "0.02s", "--listen", "127.0.0.1:0", "--no-keep")


def test_on_a_terminal_one_line_moves_and_changes_of_mind_are_printed_with_their_reason(terminal, trace):
    shown = terminal("up", *replaying(trace))

    assert shown.ended() == 0
    lines = status_lines(shown.text)
    plain = re.sub(r"\x1b\[(\d+m|K)", "", shown.text)
    changes = re.findall(r"\d\d:\d\d:\d\d \S+: (\w+) -> (\w+): (.+?)\r\n", plain)

    assert len({line for line in lines}) >= 20
    assert all(re.search(r"http://127\.0\.0\.1:\d+/$", line.rstrip("\r\n")) for line in lines)
    assert not any("\n" in line.rstrip("\r\n") for line in lines if "decisions for" not in line)
    assert ("accepting", "refusing") in {(before, after) for before, after, _ in changes}
    assert all(reason for _, _, reason in changes)
    # The line is gone before the summary is printed.
    assert re.search(r"\r\x1b\[K(\r\x1b\[K)?120 decisions for ", shown.text)


def test_ctrl_c_on_a_terminal_ends_with_the_summary(terminal):
    shown = terminal(
        "up", "--source", "generated", "--interval", "0.05s", "--listen", "127.0.0.1:0", "--no-keep"
    )
    shown.until(lambda text: len(status_lines(text)) > 3)
    shown.press(b"\x03")

    assert shown.ended() == 0
    assert "decisions for" in shown.text


def test_a_terminal_that_is_held_does_not_hold_the_agent(terminal, tmp_path):
    shown = terminal("up", "--source", "generated", "--interval", "0.05s", "--listen", "127.0.0.1:0")
    shown.until(lambda text: "http://" in text)
    url = address(tmp_path)
    shown.press(b"\x13")  # Ctrl-S
    before = ask(url)["loop"]["ticks"]
    wait_for(lambda: ask(url)["loop"]["ticks"] > before + 40)
    shown.read()
    held = len(shown.text)
    shown.press(b"\x11")  # Ctrl-Q
    shown.until(lambda text: len(text) > held)
    shown.press(b"\x03")

    assert shown.ended() == 0


def test_a_dumb_terminal_gets_plain_lines(terminal, trace):
    shown = terminal("up", *replaying(trace), term="dumb")

    assert shown.ended() == 0
    assert "\x1b" not in shown.text
    assert "accepting -> refusing: " in shown.text


def test_without_a_terminal_changes_of_mind_are_logged(start, trace):
    process = start("up", *replaying(trace))
    _, err = process.communicate(timeout=60)

    assert "\x1b" not in err
    assert re.search(r"(?m)^pronto: \S+: accepting -> refusing: CPU Ready .+$", err)
    assert re.search(r"(?m)^pronto: \S+: (refusing|contended) -> accepting: .+$", err)


@pytest.mark.parametrize("command", ["up", "agent"])
def test_a_collector_gets_one_object_a_line(start, trace, command):
    process = start(command, *replaying(trace), "--log-format", "json")
    out, err = process.communicate(timeout=60)
    rows = [json.loads(line) for line in err.splitlines()]
    changes = [row for row in rows if "state" in row]

    assert out == ""
    assert all({"time", "level", "message"} <= row.keys() for row in rows)
    assert all(row.keys() >= FIELDS for row in changes)
    assert changes[0]["previous_state"] is None
    refused = next(row for row in changes if row["state"] == "refusing")
    assert refused["previous_state"] in ("accepting", "contended")
    assert refused["cpu_ready_percent"] == 40.0
    assert 0.0 <= refused["probability"] <= 1.0
    assert refused["reason"] in refused["message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", refused["time"])


def test_the_fields_of_the_log_are_documented():
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()

    assert all(f"`{field}`" in page for field in FIELDS)


def test_many_nodes_that_change_at_once_are_summed_up(caplog):
    class Nodes(Machine):
        def read(self):
            self.reads += 1
            ready = 50.0 if self.reads > 30 else 0.5
            return [
                type(one)(f"n{i}", one.metrics, one.vector, one.timestamp, ready, 10.0)
                for i in range(40)
                for one in [sample(self.reads)]
            ]

    caplog.set_level("INFO", "prontosched")
    log = ChangeLog()
    run(make_agent(Nodes(), preset="default", followers=[log]), ticks=34)
    found = [record for record in caplog.records if hasattr(record, "change")]

    assert log.logged >= 40
    assert 1 <= len(found) <= 80
    assert any("more nodes changed their state" in record.message for record in caplog.records)


def test_names_that_a_terminal_would_obey_are_shown_as_text():
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        screen = Screen(stream)
        screen.write("n1\x1b[2J: refusing\n")
        screen.show(["refusing 1s", "waiting: evil\x07"])
        shown = ""
        while "evil" not in shown:
            shown += os.read(master, 4096).decode()
        screen.end()
    os.close(master)

    assert "n1?[2J: refusing" in shown
    assert "waiting: evil?" in shown
    assert "\x1b[2J" not in shown


def test_the_status_line_says_who_waits():
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    with os.fdopen(slave, "w") as stream:
        StatusLine(Screen(stream)).follow(watched(Busy()))
        shown = os.read(master, 4096).decode()
    os.close(master)

    assert "3.1 CPUs waiting: postgres.service 1.9, build-7 1.2" in shown
    assert "backup.service" not in shown


def test_a_narrow_terminal_keeps_state_and_address():
    parts = [
        "refusing 3s",
        "CPU Ready 9.0 %",
        "p 0.90",
        "2.1 CPUs waiting: make 2.1",
        "refused 2 % of 10m",
        "http://h:1/",
    ]

    assert fitting(parts, 200) == parts
    assert fitting(parts, 80) == [*parts[:3], *parts[4:]]
    assert fitting(parts, 50) == [*parts[:3], parts[-1]]


def agent_after(readies):
    clock = Clock()
    agent = make_agent(
        Machine(lambda i: [sample(i, ready=readies[i])]), clock=clock, interval=1.0, preset="default"
    )
    return ticked(agent, clock, len(readies))


def test_the_summary_of_a_short_run_claims_nothing_that_it_cannot_carry():
    found = summary(agent_after([0.5] * 20 + [60.0] * 5 + [0.5] * 15))

    assert "coin" not in found
    assert "40 decisions for n1 in 40 s" in found
    assert "record: Too little has happened to tell what its refusals are worth: " in found
    assert "% of the time" not in found
    assert "at the tolerance or above in 5 of 40 timesteps" in found
    assert "late" not in found
    assert "fault" not in found


def test_the_summary_of_a_long_run_tells_its_record():
    found = summary(agent_after(([0.5] * 40 + [60.0] * 10) * 30))

    assert re.search(r"refused \d+\.\d% of the time, \d+ changes of mind", found)
    assert re.search(r"record: \d+ of 30 contentions came after a refusal had begun\. \w+", found)


def test_the_agent_s_first_page_says_what_it_is_and_where_to_look():
    async def get(client):
        response = await client.get("/")
        return response.status, response.content_type, await response.text()

    status, kind, text = asking(get, access=Access())

    assert (status, kind) == (200, "text/plain")
    assert text.startswith("Pronto agent ")
    assert re.search(r"(?m)^n1: accepting: ", text)
    assert "/v1/decision" in text
    assert "/metrics" in text


def test_up_answers_with_the_page_itself(start, tmp_path):
    start("up", "--source", "generated", "--listen", "127.0.0.1:0")
    with urllib.request.urlopen(f"{address(tmp_path)}/", timeout=5) as response:
        assert response.headers.get_content_type() == "text/html"


def test_the_progress_of_a_recording_fits_a_narrow_terminal(terminal, tmp_path):
    """A line that the terminal breaks is not drawn over: every second would leave one more."""
    screen = terminal(
        "record", str(tmp_path / "out.csv"), "--for", "2s", "--interval", "0.5s", "--no-probe", columns=40
    )

    screen.until(lambda text: "bytes " in text)
    assert screen.ended() == 0
    drawn = re.findall(r"\r([^\r\x1b]*)\x1b\[K", screen.text)
    assert len(drawn) >= 2
    assert all(10 < len(line) < 40 for line in drawn[:-1])
    # The summary begins a line of its own.
    assert drawn[-1] == ""
    assert screen.text.partition("\r\x1b[K")[2].startswith("file ")


def test_the_progress_of_a_recording_moves_nothing_on_a_plain_terminal(terminal, tmp_path):
    screen = terminal("record", str(tmp_path / "out.csv"), "--for", "1s", "--no-probe", term="dumb")

    screen.until(lambda text: "bytes " in text)
    assert screen.ended() == 0
    assert "rows of" in screen.text
    assert "\x1b" not in screen.text
