"""pytest, but a skipped test that is not marked ``gpu`` fails the run."""

# ruff: noqa: D102

from __future__ import annotations

import sys
from pathlib import Path

import pytest


class NoSilentSkips:
    """Collects the skipped tests that should have run."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):  # noqa: ARG002
        report = yield
        expected = hasattr(report, "wasxfail") or item.get_closest_marker("gpu")
        if report.skipped and not expected:
            self.skipped.append(f"{item.nodeid}: {report.longrepr[2]}")
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(f"{report.nodeid}: {report.longrepr[2]}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped, but not for want of a GPU")
            for line in self.skipped:
                terminalreporter.write_line(line)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` does
    sys.exit(pytest.main(sys.argv[1:], plugins=[NoSilentSkips()]))
