class CheckLines:
    def __init__(self, d): pass
    def write(self, f): pass
