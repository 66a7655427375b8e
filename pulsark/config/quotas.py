"""The settings of quotas: how much of a broker one client, one tenant or all may use."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.authorization import AuthorizationSettings
from pulsark.config.spec import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings(AuthorizationSettings):
    """That part of ``Settings``, and what it needs."""

    maxTenants: int = setting(0, "count", "Most tenants; 0: no limit", ge=0)
    maxNamespacesPerTenant: int = setting(
        0, "count", "Most namespaces of a tenant; 0: no limit", ge=0
    )
    maxSameAddressProducersPerTopic: int = setting(
        0, "count", "Most producers of a topic from one address; 0: no limit", ge=0
    )
    maxSameAddressConsumersPerTopic: int = setting(
        0, "count", "Most consumers of a topic from one address; 0: no limit", ge=0
    )
    maxConcurrentLookupRequest: int = setting(
        50_000, "count", "Lookups answered at the same time; more are refused", ge=1
    )
    httpRequestsLimitEnabled: bool = setting(
        False, "", "httpRequestsMaxPerSecond holds; requests beyond are answered with 429"
    )
    httpRequestsMaxPerSecond: float = setting(
        100.0, "1/s", "Most HTTP requests of all clients in a second", ge=0.001
    )
