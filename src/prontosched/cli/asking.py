"""The options of commands that ask an agent, and finding the one they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from prontosched.cli.shared_options import FILE, together

if TYPE_CHECKING:
    from prontosched.agent.http.client import Client

# Which agent to ask.
asking_options = together(
    click.option("--agent", "url", metavar="URL", help="Agent to ask, or none.  [default: this machine's]"),
    click.option("--token-file", type=FILE, help="Token to send."),
    click.option("--ca", type=FILE, help="Authority to trust for TLS."),
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="The agent's folder.  [default: $XDG_STATE_HOME/pronto]",
    ),
)

node_option = click.option("--node", metavar="NAME", help="Which node, where the agent watches several.")


def find(
    url: str | None, token_file: Path | None, ca: Path | None, state: Path | None
) -> tuple[Client | None, Path]:
    """Return the agent the options mean, None where there is none, and its folder."""
    from prontosched.agent.http.auth import read_token
    from prontosched.agent.http.client import find_agent
    from prontosched.agent.store.state import default_folder

    folder = state or default_folder()
    token = None if token_file is None else read_token(token_file)
    return find_agent(url, folder, token=token, certificate=ca), folder
