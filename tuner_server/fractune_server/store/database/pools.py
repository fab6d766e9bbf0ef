"""Pools: the records that a search may read. A tenant has one for each of its namespaces.

Tenants that share searches have one common pool for the jobs without a namespace. The pool stands in a record where
workers know a namespace alone: so nothing behind the server has to know about tenants to keep their searches apart.
"""

from __future__ import annotations

from fractune_core.errors import BadRequest, shortened
from fractune_core.names import DEFAULT_TENANT

_SHOWN = 80
"""characters of a wrong namespace in a message"""
SHARED = "*/"
"""the common pool; no tenant has this name, and no namespace has this character"""


def pool_of(tenant: str, namespace: str, *, shares_searches: bool) -> str:
    """Raises BadRequest for a namespace with the character that sets tenants apart: it would be another's pool."""
    if "/" in namespace:
        raise BadRequest(f"namespace '{shortened(namespace, _SHOWN)}': write letters, digits, '.', '_' and '-'")
    if shares_searches and not namespace:
        return SHARED
    return namespace if tenant == DEFAULT_TENANT else f"{tenant}/{namespace}"


def namespace_of(pool: str) -> str:
    """The namespace as its tenant knows it."""
    return pool.rpartition("/")[2]
