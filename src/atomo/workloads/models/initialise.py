"""First weights, drawn from torch's global generator; biases start at zero."""

from torch.nn import Conv2d, Linear, Module, init

__all__ = ["he_normal", "lecun_uniform"]


def he_normal(network: Module) -> None:
    """Keeps gradients (convolutions) and activations (linear layers) level through ReLUs.

    He et al., "Delving Deep into Rectifiers", ICCV 2015: a normal of variance 2 / fan. The last
    linear layer, which no ReLU follows, keeps torch's smaller weights: deep ResNets would otherwise
    start with a loss far above that of guessing.
    """
    *hidden, _ = (layer for layer in network.modules() if isinstance(layer, Linear))
    for linear in hidden:
        init.kaiming_normal_(linear.weight, mode="fan_in", nonlinearity="relu")
    for layer in network.modules():
        if isinstance(layer, Conv2d):
            init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    zero_biases(network)


def lecun_uniform(network: Module) -> None:
    """Keeps activations level where layers are nearly linear.

    LeCun et al., "Efficient BackProp", 1998: a uniform of variance 1 / fan-in.
    """
    for layer in network.modules():
        if isinstance(layer, Conv2d | Linear):
            init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    zero_biases(network)


def zero_biases(network: Module) -> None:
    """Zeroes the biases of the layers that hold a weight matrix or kernel."""
    for layer in network.modules():
        if isinstance(layer, Conv2d | Linear) and layer.bias is not None:
            init.zeros_(layer.bias)
