// Creates processes with os/exec, then waits for them. A contestant of spawn-suite; keys and output as spawn_mech.c.
//
// MECHANISM: exec. Keys: program arg count limit rss env envlen, always with after=1 and parallel=1.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func cpuSeconds() (user, sys float64) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err != nil {
			fail(err)
		}
		user += float64(usage.Utime.Nano()) / 1e9
		sys += float64(usage.Stime.Nano()) / 1e9
	}
	return
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "spawn.go:", err)
	os.Exit(1)
}

func main() {
	text := map[string]string{}
	number := map[string]int{"count": 1000, "limit": 60000, "rss": 0, "env": 0, "envlen": 0}
	for _, argument := range os.Args[2:] {
		key, value, _ := strings.Cut(argument, "=")
		text[key] = value
		if n, err := strconv.Atoi(value); err == nil {
			number[key] = n
		}
	}
	resident := make([]byte, number["rss"]<<20)
	for i := 0; i < len(resident); i += 4096 {
		resident[i] = 1
	}
	var arguments []string
	if argument, ok := text["arg"]; ok {
		arguments = append(arguments, argument)
	}
	var environment []string
	if number["env"] > 0 {
		environment = os.Environ()
		for i := range number["env"] {
			environment = append(environment, fmt.Sprintf("HQ_BENCH_%03d=%s", i, strings.Repeat("x", number["envlen"])))
		}
	}
	children := make([]*exec.Cmd, 0, number["count"])
	userBefore, sysBefore := cpuSeconds()
	begin := time.Now()
	limit := time.Duration(number["limit"]) * time.Millisecond
	for len(children) < number["count"] && time.Since(begin) < limit {
		command := exec.Command(text["program"], arguments...)
		command.Env = environment
		// Inherited streams, as with the others; without them os/exec opens /dev/null for each process.
		command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := command.Start(); err != nil {
			fail(err)
		}
		children = append(children, command)
	}
	spawning := time.Since(begin)
	for _, child := range children {
		if err := child.Wait(); err != nil {
			fail(err)
		}
	}
	seconds := time.Since(begin)
	user, sys := cpuSeconds()
	fmt.Fprintf(os.Stderr, "%d %.6f %.6f %.6f %.6f\n", len(children), seconds.Seconds(), spawning.Seconds(),
		user-userBefore, sys-sysBefore)
	if len(resident) > 0 && resident[0] != 1 {
		os.Exit(1)
	}
}
