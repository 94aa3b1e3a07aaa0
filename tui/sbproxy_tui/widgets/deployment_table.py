"""The table of deployments: keyed updates, so that the cursor and the scroll position stay."""

from __future__ import annotations

from textual.widgets import DataTable

from sbproxy_tui.view.select import COLUMNS, DeploymentRow


class DeploymentTable(DataTable[str]):
    """Shows rows; tells nobody anything but which row the cursor is on."""

    def __init__(self) -> None:
        super().__init__(id="deployments", cursor_type="row", zebra_stripes=False)
        self._shown: dict[str, tuple[str, ...]] = {}
        self._deployments: dict[str, str] = {}

    def on_mount(self) -> None:
        for column in COLUMNS:
            self.add_column(column, key=column)

    def show(self, rows: tuple[DeploymentRow, ...]) -> None:
        wanted = {row.key: row.cells for row in rows}
        for key in [key for key in self._shown if key not in wanted]:
            self.remove_row(key)
        for key, cells in wanted.items():
            if key not in self._shown:
                self.add_row(*cells, key=key)
                continue
            for column, cell, before in zip(COLUMNS, cells, self._shown[key], strict=True):
                if cell != before:
                    self.update_cell(key, column, cell, update_width=True)
        self._shown = wanted
        self._deployments = {row.key: row.deployment for row in rows}

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        if not self._shown:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    @property
    def selected_deployment(self) -> str | None:
        """The deployment of that row."""
        return self._deployments.get(self.selected or "")
