"""The roofs of shares: the best values of any measuring worker, because a slow measurement is not a limit."""

from __future__ import annotations

from sqlalchemy import bindparam, case, select

from fractune_core.analysis.roofline import Roof
from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import roofs

_BEST = (roofs.c.gflops, roofs.c.gb_per_s, roofs.c.cache_bytes)
_OF_DEVICE = select(roofs.c.share_key, *_BEST).where(roofs.c.device_key == bindparam("device"))


class RoofStore(Repository):
    def add(self, device_key: str, share_key: str, roof: Roof) -> None:
        """Store the roof; of each value the larger one is kept."""
        row = self._database.insert(roofs).values(device_key=device_key, share_key=share_key, **roof.to_json())
        larger = {old.name: case((row.excluded[old.name] > old, row.excluded[old.name]), else_=old) for old in _BEST}
        with self._database.write() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["device_key", "share_key"], set_=larger))

    def of(self, device_key: str) -> dict[str, Roof]:
        """The roofs of a device, by share key."""
        with self._database.read() as connection:
            rows = connection.execute(_OF_DEVICE, {"device": device_key})
            return {share_key: Roof(*figures) for share_key, *figures in rows}
