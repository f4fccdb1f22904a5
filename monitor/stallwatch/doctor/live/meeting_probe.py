"""Tries the place where nodes meet, as the daemon would."""

import os
from pathlib import Path

from stallwatch.config_sections import FleetSection
from stallwatch.errors import UsageError

_SECONDS = 2.5  # of what all checks together have


class ConfiguredMeeting:
    """Satisfies doctor.surroundings.MeetingTrial."""

    def __init__(self, section: FleetSection, node: str) -> None:
        self.url = section.url
        self._section = section
        self._node = node

    def problem(self) -> tuple[str, str]:
        """Return what is wrong with the place and what to do, ("", "") where it can be used; ends within seconds."""
        from stallwatch.fleet.place_settings import settings_of
        from stallwatch.fleet.try_place import try_place

        try:
            settings = settings_of(self._section)
            assert settings is not None
            warnings = try_place(settings, self._node, _SECONDS).warnings
        except UsageError as error:
            return str(error), error.help
        return "; ".join(warnings), ""

    def exposed(self) -> str:
        """Return that the key may be read by others and what to do, "" where it may not."""
        from stallwatch.fleet.place_settings import exposed, settings_of

        try:
            settings = settings_of(self._section)
        except UsageError:
            return ""
        return exposed(settings) if settings is not None else ""


def meeting_of(section: FleetSection, node: str) -> ConfiguredMeeting | None:
    """None where nodes do not meet. `node`: how this one is called."""
    return ConfiguredMeeting(section, node) if section.url else None


class HiddenMeeting:
    """Of a place that only others may know: satisfies doctor.surroundings.MeetingTrial."""

    def __init__(self, file: Path) -> None:
        self.url = str(file)

    def problem(self) -> tuple[str, str]:
        """Return that the configuration cannot be read."""
        return f"{self.url}: Permission denied", ""

    def exposed(self) -> str:
        """Return "": nobody knows which key it is."""
        return ""


def hidden_meeting(file: Path) -> HiddenMeeting | None:
    """None where a configuration is not there, or may be read."""
    return HiddenMeeting(file) if file.exists() and not os.access(file, os.R_OK) else None
