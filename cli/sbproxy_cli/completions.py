"""`sbproxy completions SHELL`: a script that teaches a shell the commands and flags."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sbproxy_cli import output
from sbproxy_cli.argv import COMPLETE_VARIABLE
from sbproxy_cli.boundary import verb

# The parser has no script of its own for this shell; its answer for bash, one word a line, is what elvish wants.
_ELVISH = """\
use str
set edit:completion:arg-completer[sbproxy] = {|@words|
  var at = (- (count $words) 1)
  env _SBPROXY_COMPLETE=complete_bash COMP_WORDS=(str:join "\\n" $words) COMP_CWORD=$at sbproxy | from-lines
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
    if shell is Shell.elvish:
        output.block(_ELVISH)
        return
    from typer._completion_shared import get_completion_script

    output.block(get_completion_script(prog_name="sbproxy", complete_var=COMPLETE_VARIABLE, shell=shell.value))
