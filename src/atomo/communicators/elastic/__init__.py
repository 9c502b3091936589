"""Elastic groups: ranks without a master that continue after the death of a rank."""

from atomo.communicators.elastic.communicator import ElasticCommunicator
from atomo.communicators.elastic.group import ElasticGroup

__all__ = ["ElasticCommunicator", "ElasticGroup"]
