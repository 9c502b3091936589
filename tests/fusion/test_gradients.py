"""Gradients in flat buffers: who has them lets go of the model in the end."""

import gc
import weakref

from torch import nn

from atomo.codecs import make_codec
from atomo.fusion import Gradients, plan, shapes
from atomo.options.grouping import ONE


def test_what_is_closed_is_freed_with_its_model() -> None:
    """Parameters keep their hooks in a place where Python finds no cycle."""
    model = nn.Linear(3, 2)
    buckets = plan(shapes(model), make_codec("sgd"), ONE)
    gradients = Gradients(model, buckets, lambda bucket, flat: None)
    left = weakref.ref(gradients), weakref.ref(model)
    gradients.begin()
    model(model.weight.new_ones(1, 3)).sum().backward()
    gradients.close()
    del gradients, model
    gc.collect()
    assert [one() for one in left] == [None, None]
