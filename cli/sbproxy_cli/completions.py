"""`sbproxy completions SHELL`: a script that teaches a shell the commands and flags."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sbproxy_cli import output
from sbproxy_cli.boundary import verb

COMPLETE_VARIABLE = "_SBPROXY_COMPLETE"
_ELVISH = """\
set edit:completion:arg-completer[sbproxy] = {|@words|
  var line = (str:join ' ' $words)
  env _SBPROXY_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS=$line sbproxy | from-lines
}
"""


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"
    elvish = "elvish"


@verb("completions")
def completions(context: typer.Context, shell: Annotated[Shell, typer.Argument(help="The shell to teach.")]) -> None:
    """Print a completion script for a shell.

    Source it from the shell's start-up file.
    """
    from typer._completion_shared import get_completion_script

    output.block(get_completion_script(prog_name="sbproxy", complete_var=COMPLETE_VARIABLE, shell=shell.value))
