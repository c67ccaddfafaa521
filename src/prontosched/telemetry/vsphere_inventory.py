"""The machines of a vCenter and their properties, in few round trips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Entity:
    """A machine of the vCenter: its name, its handle and its CPUs."""

    __slots__ = ("cpus", "name", "place")

    def __init__(self, name: str, place: Any, cpus: int) -> None:
        self.name = name
        self.place = place
        self.cpus = cpus


def tell_apart(entities: list[Entity]) -> None:
    """Give machines of one name, which vSphere allows in different folders, their identity as well."""
    names = [entity.name for entity in entities]
    for entity in entities:
        if names.count(entity.name) > 1:
            entity.name = f"{entity.name} ({entity.place._moId})"


def properties_of(
    content: Any, kind: Any, found: list[Any], paths: list[str]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the properties of many objects in few round trips."""
    from pyVmomi import vmodl

    collector = vmodl.query.PropertyCollector
    if not found:
        return
    spec = collector.FilterSpec(
        objectSet=[collector.ObjectSpec(obj=place) for place in found],
        propSet=[collector.PropertySpec(type=kind, pathSet=paths, all=False)],
    )
    answer = content.propertyCollector.RetrievePropertiesEx([spec], collector.RetrieveOptions())
    while answer is not None:
        for item in answer.objects:
            yield item.obj, {prop.name: prop.val for prop in item.propSet}
        if not answer.token:
            return
        answer = content.propertyCollector.ContinueRetrievePropertiesEx(answer.token)
