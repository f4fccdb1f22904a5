"""Tries the place where nodes meet, as the daemon would."""

from stallwatch.config_sections import FleetSection
from stallwatch.errors import UsageError

_SECONDS = 2.5  # of what all checks together have


class ConfiguredMeeting:
    """Satisfies doctor.surroundings.MeetingTrial."""

    def __init__(self, section: FleetSection) -> None:
        self.url = section.url
        self._section = section

    def problem(self) -> tuple[str, str]:
        """Return what is wrong with the place and what to do, ("", "") where it can be used; ends within seconds."""
        from stallwatch.fleet.place_settings import settings_of
        from stallwatch.fleet.try_place import try_place

        try:
            settings = settings_of(self._section)
            assert settings is not None
            try_place(settings, _SECONDS)
        except UsageError as error:
            return str(error), error.help
        return "", ""


def meeting_of(section: FleetSection) -> ConfiguredMeeting | None:
    """None where nodes do not meet."""
    return ConfiguredMeeting(section) if section.url else None
