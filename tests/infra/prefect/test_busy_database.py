"""Transactions of Prefect's embedded server that read and then write wait for one another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trimtab.infra.prefect.server import begin_transactions_as_writes


def test_transactions_that_read_first_all_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses such a transaction where another has written since it read."""
    import sqlalchemy as sa
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction
    monkeypatch.setattr(AioSqliteConfiguration, "begin_transaction", begin)  # as it is, afterwards
    begin_transactions_as_writes()

    async def count_to(number: int) -> int:
        database = AioSqliteConfiguration(f"sqlite+aiosqlite:///{tmp_path}/prefect.db")
        engine = await database.engine()

        async def add_one() -> None:
            session = await database.session(engine)
            async with session, database.begin_transaction(session):
                number = await session.scalar(sa.text("SELECT number FROM counter"))
                await asyncio.sleep(0.01)
                await session.execute(sa.text(f"UPDATE counter SET number = {number + 1}"))

        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE counter AS SELECT 0 AS number"))
            await connection.commit()
        await asyncio.gather(*(add_one() for _ in range(number)))
        async with engine.connect() as connection:
            counted = await connection.scalar(sa.text("SELECT number FROM counter"))
        await engine.dispose()
        return int(counted)

    assert asyncio.run(count_to(8)) == 8
