"""The staff directory."""

from __future__ import annotations

from rollbook.core.json import JSON
from rollbook.environments.environment import Environment, tool
from rollbook.environments.workplace.world import World


class People(Environment):
    """Reading only."""

    @tool
    def find_people(self, state: World, name: str = "", team: str = "", leads_only: bool = False) -> JSON:
        """List people who work here, with their mail addresses and teams.

        Args:
            name: A part of the name; leave it out for everyone.
            team: Sales, Support, Engineering, Finance or Office.
            leads_only: Only those who lead a team.
        """
        return [
            person
            for person in state.tables["people"].values()
            if name.lower() in person["name"].lower()
            and team.lower() in ("", person["team"].lower())
            and (person["lead"] or not leads_only)
        ]
