"""`sfctl logs`: whose log a name means."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from bus.agent_status import AgentLink, AgentStatus, write_agent_status
from head.cli.command_line import cli


def test_logs_take_the_name_of_the_fleet_too(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "node-2"
    folder.mkdir(parents=True)
    link = AgentLink(peer="head h1", address="tcp://h:1", up=True)
    write_agent_status(folder, AgentStatus(1, "gpu-1-abc", link, ()))
    (tmp_path / "log").mkdir()
    for name in ("node-1", "node-2"):
        (tmp_path / "log" / f"{name}.log").write_text(f"of {name}\n")
    logs = ["--state", str(tmp_path), "logs"]
    assert CliRunner().invoke(cli, [*logs, "gpu-1-abc"]).stdout == "of node-2\n"
    assert CliRunner().invoke(cli, logs).stdout == "of node-1\n"
    missing = CliRunner().invoke(cli, [*logs, "nosuch"])
    assert missing.exit_code == 5
    assert "there is: node-1, node-2" in missing.stderr
    (tmp_path / "log" / "head.log").write_text("of the head\n")
    assert CliRunner().invoke(cli, logs).stdout == "of the head\n"
