from traincope.timeline import open_run
from traincope.analysis.faults.hangs.evidence.calls import latest_calls
from traincope.analysis.faults.hangs.evidence.standing import standing
from traincope.analysis.faults.hangs.evidence.waiting import edges_of, sources
t=open_run("traincope_runs/score-reports/runs/stage_of_its_own_count/run")
l=latest_calls(t)
for r,c in l.items():
    print(r, c.departs, len(c.calls)); 
    for x in c.calls[-10:]: print("   ", x.operation, x.channel.source, x.channel.destination, x.channel.direct, x.window, x.sequence, x.step, x.unfinished, x.raised, x.num_bytes, x.place)
s=standing(t,l)
for r,e in s.items(): print(r,[ (c.operation,c.channel.source,c.channel.destination,c.sequence) for c in e.waits], e.certain, e.place)
