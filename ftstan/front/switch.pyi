class Switch:
    obeyed: int
    connections: int
    passing: int
    direct_in: int
    direct_out: int
    passed_in: int
    passed_out: int
    slow: int
    encrypted: int
    not_shaken: int
    is_forbidden: bool
    is_crowded: bool

    def __init__(self, *, commands: int, words: int, max_line: int, max_pending: int) -> None: ...
    def run(self) -> None: ...
