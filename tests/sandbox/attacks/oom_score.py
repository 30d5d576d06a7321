# status: error
open("/proc/self/oom_score_adj", "w").write("-1000")
print("BREACH")
