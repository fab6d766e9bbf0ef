"""The roofs of shares: the best values of any measuring worker, because a slow measurement is not a limit."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import ColumnElement, and_, bindparam, case, or_, select

from fractune_core.analysis.roofline import Roof
from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import roofs

_FIGURES = tuple(roofs.c[field.name] for field in fields(Roof))
_OF_DEVICE = select(roofs.c.share_key, *_FIGURES).where(roofs.c.device_key == bindparam("device"))


class RoofStore(Repository):
    def add(self, device_key: str, share_key: str, roof: Roof) -> None:
        """Store the roof; of each figure the better one is kept: the larger rate, and the smaller known time."""
        row = self._database.insert(roofs).values(device_key=device_key, share_key=share_key, **roof.to_json())
        better = {
            old.name: case((_is_better(row.excluded[old.name], old), row.excluded[old.name]), else_=old)
            for old in _FIGURES
        }
        with self._database.write() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["device_key", "share_key"], set_=better))

    def of(self, device_key: str) -> dict[str, Roof]:
        """The roofs of a device, by share key."""
        with self._database.read() as connection:
            rows = connection.execute(_OF_DEVICE, {"device": device_key})
            return {share_key: Roof(*figures) for share_key, *figures in rows}


def _is_better(new: ColumnElement[float], old: ColumnElement[float]) -> ColumnElement[bool]:
    """As `Roof.raised_to` decides."""
    if old.name != roofs.c.launch_s.name:
        return new > old
    return and_(new > 0, or_(new < old, old == 0))
