"""What `gpucheck explain` itself says, in the languages that it speaks. The pitfalls' own words are not here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phrases:
    """Labels and sentences of the text output; braces are filled by the writer."""

    seen: str
    cause: str
    wrong_guess: str
    remedy: str
    commands: str
    why: str
    shared: str
    decide: str
    consequence: str
    ruled_out: str
    more: str
    line: str
    confidence: str
    high: str
    medium: str
    low: str
    safe: str
    needs_root: str
    disrupts_jobs: str
    text_only: str
    text_weak: str
    for_it: str
    against_it: str
    only_here: str
    unsure: str
    nothing: str
    hints: str
    collect: str
    collect_list: tuple[str, ...]
    probe: str
    sources: str
    here: str
    excludes: str


ENGLISH = Phrases(
    seen="Seen",
    cause="Cause",
    wrong_guess="Not this",
    remedy="Remedy",
    commands="Type",
    why="Why",
    shared="Same message: {rivals}.",
    decide="To decide, run and compare: {ask}",
    consequence="a consequence of {cause}",
    ruled_out="Ruled out: {pitfall} ({reason})",
    more="and {count} more",
    line="line {line}",
    confidence="{level} confidence",
    high="high",
    medium="medium",
    low="low",
    safe="safe",
    needs_root="needs root",
    disrupts_jobs="disrupts running jobs",
    text_only="the message names it",
    text_weak="the text alone is too common to be sure",
    for_it="for it: {reason}",
    against_it="against it: {reason}",
    only_here="true only if the job ran right here, not in a container: {reason}",
    unsure="I do not know what is wrong here: nothing is above low confidence.",
    nothing="Nothing known was found in {size}, {source}.",
    hints="Faint hints, not answers:",
    collect="If it did fail, collect this and ask again:",
    collect_list=(
        "the first error of the job, with 50 lines before it, from every rank",
        "how it ended: exit status, signal, `docker inspect` or `kubectl describe pod`",
        "nvidia-smi; sudo dmesg -T | tail -n 100; df -h / /tmp /dev/shm; ulimit -a",
    ),
    probe="Probe",
    sources="Read",
    here="Here",
    excludes="ruled out: {reason}",
)

CHINESE = Phrases(
    seen="日志",
    cause="原因",
    wrong_guess="常见误判",
    remedy="处理",
    commands="命令",
    why="依据",
    shared="同样的报错也可能是：{rivals}。",
    decide="要区分，请运行并对照：{ask}",
    consequence="由 {cause} 引起的后果",
    ruled_out="已排除：{pitfall}（{reason}）",
    more="另有 {count} 处",
    line="第 {line} 行",
    confidence="可信度{level}",
    high="高",
    medium="中",
    low="低",
    safe="安全",
    needs_root="需要 root",
    disrupts_jobs="会打断正在运行的任务",
    text_only="报错文字可以确认",
    text_weak="单凭这段文字太常见，不足以确定",
    for_it="支持：{reason}",
    against_it="不支持：{reason}",
    only_here="仅当任务就在本机运行（不在容器里）时成立：{reason}",
    unsure="无法判断哪里出错：没有高于“低”的结论。",
    nothing="在 {source}（{size}）中没有发现已知问题。",
    hints="微弱的线索，不是结论：",
    collect="如果确实失败了，请收集以下内容再来询问：",
    collect_list=(
        "任务最先出现的错误及其之前 50 行，每个 rank 都要",
        "结束方式：退出码、信号、`docker inspect` 或 `kubectl describe pod`",
        "nvidia-smi; sudo dmesg -T | tail -n 100; df -h / /tmp /dev/shm; ulimit -a",
    ),
    probe="探针",
    sources="参考",
    here="本机",
    excludes="已排除：{reason}",
)

PHRASES = {"en": ENGLISH, "zh": CHINESE}
