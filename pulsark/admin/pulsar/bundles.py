"""``/admin/v2/namespaces/.../{bundle}``: the ranges of hashes that a namespace is cut in."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastapi import Request
from fastapi.responses import Response

from pulsark.admin.http.errors import fail
from pulsark.admin.http.guard import READ, Guarded, namespace, namespace_policy, superuser
from pulsark.admin.http.paths import BUNDLE, TOPICS
from pulsark.admin.http.places import ANYWHERE, OWNER_OF_BUNDLE, EachBroker
from pulsark.admin.http.requests import BrokerOf, NamespaceOf, done, flag, value
from pulsark.admin.http.spreading import Part, failure
from pulsark.admin.pulsar.policies import existing_namespace
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.brokers.splitting import ALGORITHMS, POSITIONS_MAX
from pulsark.dispatch.loop.turns import in_turns
from pulsark.security.operations import NamespaceOperation as N
from pulsark.wire.hashes import bundle_hash
from pulsark.wire.topic_name import NON_PERSISTENT, TopicName

router = Guarded(at=ANYWHERE, tags=["bundles"])

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_ONE = _NAMESPACE + BUNDLE


def _positions(broker: Broker, request: Request, parts: Sequence[Part]) -> Response:
    failed = failure(parts)
    if failed is not None:
        return failed
    answers = [part.json for part in parts]
    shown = {
        topic: place for each in answers for topic, place in each["topicHashPositions"].items()
    }
    return value({**answers[0], "topicHashPositions": shown})


async def checked_bundle(broker: Broker, namespace: str, bundle: str) -> str:
    """The name of a bundle as it is kept; 412 if the namespace has no such bundle."""
    name = bundle.lower()
    if name not in (await existing_namespace(broker, namespace)).bundles:
        raise fail(412, f"{bundle} is not a bundle of {namespace}")
    return name


async def topics_of_bundle(broker: Broker, namespace: str, bundle: str) -> list[TopicName]:
    """All topics in a bundle, each partition by itself."""
    listed = (
        *await broker.catalog.list_topics(namespace, include_system=True),
        *await broker.catalog.list_non_persistent_topics(namespace, include_system=True),
    )
    names = [TopicName.parse(topic) async for topic in in_turns(listed)]
    return [
        name async for name in in_turns(names) if await broker.ownership.bundle_of(name) == bundle
    ]


@router.get(_NAMESPACE + "/bundles", needs=namespace(N.GET_BUNDLE))
async def get_bundles(name: NamespaceOf, broker: BrokerOf) -> Response:
    """Where the bundles begin and end."""
    edges = list((await existing_namespace(broker, name)).bundle_boundaries)
    return value({"boundaries": edges, "numBundles": len(edges) - 1})


@router.put(_ONE + "/unload", needs=superuser, at=OWNER_OF_BUNDLE)
async def unload_bundle(
    name: NamespaceOf, bundle: str, request: Request, broker: BrokerOf
) -> Response:
    """Give a bundle up, with its topics, to ``destinationBroker`` if the query names one.

    That one gets it also if nobody has it. Without one, the next lookup decides which broker has
    it; it may be this one again.
    """
    wanted = await checked_bundle(broker, name, bundle)
    to = request.query_params.get("destinationBroker", "")
    if to and broker.registry.get(to) is None:
        raise fail(412, f"There is no broker {to[:100]} now")
    if to and not broker.candidates.may_have(to, f"{name}/{wanted}"):
        raise fail(412, f"Namespace isolation policies keep {name} away from the broker {to[:100]}")
    whole = f"{name}/{wanted}"
    if to and not broker.ownership.has(whole) and not broker.ownership.is_leaving(whole):
        await broker.lookup.place(whole, to)
    elif to != broker.registry.own_id:
        await broker.bundle_release.release(whole, to)
    return done()


@router.put(_ONE + "/split", needs=superuser, at=OWNER_OF_BUNDLE)
async def split_bundle(
    name: NamespaceOf, bundle: str, request: Request, broker: BrokerOf
) -> Response:
    """Cut a bundle; its broker has the parts, or with ``unload`` who is chosen for each.

    ``splitAlgorithmName`` says where it is cut; a body of numbers is for
    ``specified_positions_divide``. 412 if it cannot be cut there.
    """
    wanted = f"{name}/{await checked_bundle(broker, name, bundle)}"
    algorithm = request.query_params.get("splitAlgorithmName") or (
        broker.settings.defaultNamespaceBundleSplitAlgorithm
    )
    if algorithm not in ALGORITHMS:
        raise fail(412, f"{algorithm[:100]} is none of the algorithms {', '.join(ALGORITHMS)}")
    positions = _split_at(await request.body())
    edges = await broker.bundle_split.edges(wanted, algorithm, positions)
    if not edges:
        raise fail(412, f"{algorithm} finds no place to cut the bundle {bundle}")
    await broker.bundle_split.split(wanted, edges, keep=not flag(request, "unload"))
    return done()


@router.put(_NAMESPACE + "/{kind:bundle_kind}/split", needs=superuser)
async def split_chosen_bundle(
    name: NamespaceOf, kind: str, request: Request, broker: BrokerOf
) -> Response:
    """Send the caller to the bundle with the most topics (``LARGEST``) or load (``HOT``)."""
    bundles = (await existing_namespace(broker, name)).bundles
    weights: dict[str, float] = dict.fromkeys(bundles, 0.0)
    if kind == "HOT":
        for live in broker.registry.live.values():
            for path, part in live.load.busiest:
                namespace, _, bundle = path.rpartition("/")
                if namespace == name and bundle in weights:
                    weights[bundle] += part
    if not any(weights.values()):
        listed = await broker.catalog.list_topics(name, include_system=True)
        async for topic in in_turns(listed):
            weights[await broker.ownership.bundle_of(TopicName.parse(topic))] += 1
    chosen = max(bundles, key=lambda bundle: weights[bundle])
    place = request.url.path.replace(f"/{kind}/split", f"/{chosen}/split")
    query = f"?{request.url.query}" if request.url.query else ""
    return Response(status_code=307, headers={"Location": place + query})


def _split_at(body: bytes) -> list[int]:
    if not body.strip():
        return []
    try:
        found = json.loads(body)
    except ValueError as error:
        raise fail(400, "The body is not JSON") from error
    if not found:
        return []
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise fail(400, "The places of a split are a list of numbers")
    if len(found) > POSITIONS_MAX:
        raise fail(412, f"A bundle is split at up to {POSITIONS_MAX} places at once")
    return found


@router.get(
    _ONE + "/topicHashPositions",
    needs=namespace_policy("PERSISTENCE", READ),
    at=EachBroker(_positions),
)
async def topic_hash_positions(
    name: NamespaceOf, bundle: str, request: Request, broker: BrokerOf
) -> Response:
    """The hashes of a bundle's topics, of all or of those that the query names."""
    wanted = await checked_bundle(broker, name, bundle)
    asked = {part for given in request.query_params.getlist("topics") for part in given.split(",")}
    found = [str(topic) for topic in await topics_of_bundle(broker, name, wanted)]
    shown = {topic: bundle_hash(topic) for topic in found if not asked or topic in asked}
    return value({"namespace": name, "bundle": wanted, "topicHashPositions": shown})


@router.delete(_ONE, needs=namespace(N.DELETE_BUNDLE))
async def delete_bundle(
    name: NamespaceOf, bundle: str, request: Request, broker: BrokerOf
) -> Response:
    """Delete the topics of a bundle with ``force``; 409 if it has some. The bundle stays."""
    wanted = await checked_bundle(broker, name, bundle)
    topics = await topics_of_bundle(broker, name, wanted)
    if topics and not flag(request, "force"):
        raise fail(409, "Cannot delete a bundle that has topics")
    for topic in topics:
        await broker.deletion.delete_topic(topic, force=True)
    return done()


@router.get(
    TOPICS.replace("{domain:domain}", NON_PERSISTENT) + BUNDLE,
    needs=namespace(N.GET_BUNDLE),
    at=OWNER_OF_BUNDLE,
)
async def non_persistent_topics(name: NamespaceOf, bundle: str, broker: BrokerOf) -> Response:
    """The non-persistent topics of a bundle that are in memory."""
    wanted = await checked_bundle(broker, name, bundle)
    return value(
        [
            str(topic.name)
            for topic in broker.non_persistent.all()
            if topic.name.namespace_name == name
            and await broker.ownership.bundle_of(topic.name) == wanted
        ]
    )
