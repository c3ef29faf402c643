package consultest

import "syscall"

// dieWithParent has the kernel kill the process when the thread that started
// it ends, and so when this process does.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
