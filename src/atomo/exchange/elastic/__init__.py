"""Elastic groups: ranks without a master that continue after the death of a rank."""

from atomo.exchange.elastic.communicator import ElasticCommunicator
from atomo.exchange.elastic.group import ElasticGroup

__all__ = ["ElasticCommunicator", "ElasticGroup"]
