"""The place of a cluster: an account, a region and an endpoint of AWS."""

from dataclasses import dataclass

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """An account, a region and an endpoint.

    An empty account or region is unknown; an empty endpoint is AWS itself.
    """

    account: str = ""
    region: str = ""
    endpoint: str = ""
    profile: str = ""  # the profile of the credentials, for messages; empty: unnamed

    def sees(self, other: "Place") -> bool:
        """True if commands that ask here also see the hosts of the other place, or of its region.

        A place without a region is that of a ledger of an earlier version, which has none.
        """
        if not other.region:
            return True
        return other.account in ("", self.account) and other.endpoint == self.endpoint

    def covers(self, other: "Place") -> bool:
        """True if the other place is this one, or unknown."""
        return self.sees(other) and other.region in ("", self.region)

    @property
    def text(self) -> str:
        """The place in words.

        >>> Place("123456789012", "us-east-1").text
        'account 123456789012, region us-east-1'
        """
        account = f"account {self.account or 'unknown'}"
        endpoint = f", endpoint {self.endpoint}" if self.endpoint else ""
        return f"{account}, region {self.region or 'unknown'}{endpoint}"
