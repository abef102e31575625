package serve

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kvpilot/kvpilot/server"
)

// manager reports the router's state to systemd, for units of Type=notify. Elsewhere it does nothing: systemd sets NOTIFY_SOCKET.
type manager struct{ errOut io.Writer }

// send reports one state. A manager that cannot be reached stops the unit by itself: the router's log has to say why.
func (m manager) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		fmt.Fprintln(m.errOut, "kvpilot: systemd was not notified:", err)
	}
}

// Serving reports that the listeners are open.
func (m manager) Serving(at server.Addresses) {
	m.send(daemon.SdNotifyReady + "\nSTATUS=serving HTTP at " + at.HTTP + ", gRPC at " + at.GRPC + ", admin at " + at.Admin)
}

// Reloading reports that settings are read again.
func (m manager) Reloading() { m.send(daemon.SdNotifyReloading) }

// Reloaded reports that this has ended.
func (m manager) Reloaded(err error) {
	status := "settings reloaded"
	if err != nil {
		status = "the settings in force were kept: a reload was refused, see the log"
	}
	m.send(daemon.SdNotifyReady + "\nSTATUS=" + status)
}

// stopping reports the shutdown when ctx ends.
func (m manager) stopping(ctx context.Context) {
	<-ctx.Done()
	m.send(daemon.SdNotifyStopping + "\nSTATUS=draining")
}

// watchdog reports twice per WatchdogSec of the unit that the process runs, until ctx ends. A process that is stopped or has no
// working scheduler misses it and is restarted.
func (m manager) watchdog(ctx context.Context) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		fmt.Fprintln(m.errOut, "kvpilot: no watchdog:", err)
	}
	if every <= 0 {
		return
	}
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		m.send(daemon.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
