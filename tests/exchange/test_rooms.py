"""The room for a message beside the lengths of a gather that runs at every step."""

from atomo.exchange.collectives.torch_distributed import LENGTH, next_room


def test_a_room_fits_messages_of_varying_lengths():
    room, second_rounds = 0, 0
    for step in range(200):
        longest = 1000 + 37 * step % 100
        second_rounds += longest > room
        room = next_room(room, longest)
    assert second_rounds <= 3


def test_a_room_is_never_much_longer_than_its_messages():
    assert next_room(10**8, 1000) == 1000 + 125
    assert next_room(0, 1000) == 1000 + 1000 // 32 + LENGTH
    assert next_room(0, 0) == LENGTH
