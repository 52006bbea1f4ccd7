"""Time series of the XML documents of ENTSO-E, parsed without DTDs, entities and external references.

Source: ENTSO-E Transparency Platform RESTful API, IEC 62325 documents (Publication_MarketDocument,
GL_MarketDocument, Acknowledgement_MarketDocument).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from slurm_energy.grid.csv_series import parse_time
from slurm_energy.grid.providers.base import MAX_SAMPLES, ProviderResponseError
from slurm_energy.quantities import shown

_NAME: Final = "entsoe"
_MAX_DEPTH: Final = 16
_MAX_ELEMENTS: Final = 2_000_000
_MAX_TEXT: Final = 2000
_RESOLUTION: Final = re.compile(r"PT(\d{1,4})M|PT(\d{1,3})H|P(\d)D")
_NO_DATA: Final = "no matching data"
_VARIABLE_BLOCKS: Final = "A03"


@dataclass(slots=True)
class XmlElement:
    """An element of a document: its name without prefix, its text, and its children.

    Attributes:
        name: name of the element without its namespace prefix.
        text: text between the tags.
        children: child elements.
    """

    name: str
    text: str = ""
    children: list[XmlElement] = field(default_factory=list)

    def all(self, name: str) -> Iterator[XmlElement]:
        """Yield the child elements whose tag is `name`."""
        return (child for child in self.children if child.name == name)

    def text_of(self, *path: str) -> str:
        """Return the text of the first descendant along a path of names; empty if no element matches."""
        element = self
        for name in path:
            child = next(element.all(name), None)
            if child is None:
                return ""
            element = child
        return element.text.strip()


@dataclass(frozen=True, slots=True)
class Block:
    """A value of a time series, and the time for which the value holds.

    Attributes:
        start_s: start in Unix time.
        end_s: end in Unix time.
        value: price or quantity of energy, without conversion of its unit.
    """

    start_s: float
    end_s: float
    value: float


def read_document(body: bytes) -> XmlElement | None:
    """Return the root element of a document; None if the platform has no data for the request.

    Raises:
        ProviderResponseError: the document is not XML in UTF-8, has a DTD, is too deep, or reports an error
            of the platform.
    """
    root = _parse(body)
    if root.name == "Acknowledgement_MarketDocument":
        reason = root.text_of("Reason", "text")
        if _NO_DATA in reason.lower():
            return None
        raise ProviderResponseError(_NAME, shown(reason, 200) or "the request was refused")
    return root


def blocks(series: XmlElement, value_name: str) -> Iterator[Block]:
    """Yield the values of a TimeSeries element.

    With the curve type A03 a value holds until the next position, or the end of the period.

    Args:
        series: a TimeSeries element of the document.
        value_name: name of the element with the value, `price.amount` or `quantity`.

    Raises:
        ProviderResponseError: a period is malformed.
    """
    variable = series.text_of("curveType") == _VARIABLE_BLOCKS
    for period in series.all("Period"):
        start_s = _time(period.text_of("timeInterval", "start"))
        end_s = _time(period.text_of("timeInterval", "end"))
        step_s = resolution_s(period)
        if not 0 < (end_s - start_s) / step_s <= MAX_SAMPLES:
            raise ProviderResponseError(_NAME, "a period has no plausible length")
        points = sorted(_points(period, value_name))
        starts = [start_s + (position - 1) * step_s for position, _ in points]
        if starts and (starts[0] < start_s or starts[-1] >= end_s):
            raise ProviderResponseError(_NAME, "a position lies outside of its period")
        for row, (begin_s, (_, value)) in enumerate(zip(starts, points, strict=True)):
            following_s = starts[row + 1] if row + 1 < len(starts) else end_s
            yield Block(begin_s, following_s if variable else begin_s + step_s, value)


def resolution_s(period: XmlElement) -> float:
    """Return the time step of a Period element in seconds.

    Raises:
        ProviderResponseError: the time step is missing or has an unknown form.
    """
    text = period.text_of("resolution")
    match = _RESOLUTION.fullmatch(text)
    minutes, hours, days = match.groups() if match else (None, None, None)
    seconds = int(minutes or 0) * 60.0 + int(hours or 0) * 3600.0 + int(days or 0) * 86400.0
    if not seconds:
        raise ProviderResponseError(_NAME, f"unknown resolution: {shown(text)}")
    return seconds


def _points(period: XmlElement, value_name: str) -> Iterator[tuple[int, float]]:
    positions: set[int] = set()
    for point in period.all("Point"):
        position, value = point.text_of("position"), point.text_of(value_name)
        if not re.fullmatch(r"\d{1,6}", position, re.ASCII) or not re.fullmatch(_NUMBER, value, re.ASCII):
            raise ProviderResponseError(_NAME, f"a point is malformed: {shown(f'{position} {value}')}")
        if int(position) in positions:
            raise ProviderResponseError(_NAME, f"position {position} occurs twice in a period")
        positions.add(int(position))
        yield int(position), float(value)


_NUMBER: Final = r"-?\d{1,12}(?:\.\d{1,12})?"


def _time(text: str) -> float:
    try:
        return parse_time(text[:40])
    except (ValueError, OverflowError):
        raise ProviderResponseError(_NAME, f"not a time: {shown(text)}") from None


def _parse(body: bytes) -> XmlElement:
    """Parse XML into elements. A document with a DTD is refused, so that no entities are expanded.

    Raises:
        ProviderResponseError: the text is malformed or too large.
    """
    document = XmlElement("")
    open_elements = [document]
    count = 0

    def start(name: str, _: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_elements) > _MAX_DEPTH or count > _MAX_ELEMENTS:
            raise ProviderResponseError(_NAME, "the document is nested too deeply or too large")
        element = XmlElement(name.rpartition(":")[2])
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(_: str) -> None:
        open_elements.pop()

    def data(text: str) -> None:
        if len(open_elements[-1].text) < _MAX_TEXT:
            open_elements[-1].text += text

    def refuse(*_: object) -> None:
        raise ProviderResponseError(_NAME, "the document has a DTD, which is refused")

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, data
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError) as error:
        raise ProviderResponseError(_NAME, f"the response is not XML: {shown(str(error), 100)}") from None
    return document.children[0]
