"""Alembic's entry: runs the migrations on the connection that the store hands over."""

from alembic import context
from sqlalchemy import Connection

from fractune_server.store.database.tables import metadata


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
