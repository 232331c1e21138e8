from __future__ import annotations
class CheckPanel:
    def __init__(self, faults): self.seen=[]
    def judge(self, update):
        self.seen.append(update)
        return []
