package grants

import (
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

// maxEntries bounds the reports and the accounts of one message.
const maxEntries = 1024

func amounts(a Amounts) *pb.LimitAmounts {
	if a == (Amounts{}) {
		return nil
	}
	return &pb.LimitAmounts{Requests: a.Requests, Tokens: a.Tokens}
}

func fromAmounts(a *pb.LimitAmounts) Amounts {
	return Amounts{a.GetRequests(), a.GetTokens()}
}

func holding(h Holding) *pb.LimitHolding {
	if h == (Holding{}) {
		return nil
	}
	return &pb.LimitHolding{InFlight: uint64(max(0, h.InFlight)), Reserved: uint64(max(0, h.Reserved))}
}

func fromHolding(h *pb.LimitHolding) Holding {
	return Holding{int(h.GetInFlight()), int(h.GetReserved())}
}

func report(r Report) *pb.LimitReport {
	return &pb.LimitReport{
		Tenant: r.Tenant, Epoch: r.Epoch, Sequence: r.Sequence, Returned: amounts(r.Returned), Holding: holding(r.Holding),
		Need: amounts(r.Need), Waiting: amounts(r.Waiting), More: amounts(r.More),
		NeedHolding: holding(r.NeedHolding), MoreHolding: holding(r.MoreHolding), Handover: r.Handover, Assumed: amounts(r.Assumed), Part: r.Part,
	}
}

func fromReport(r *pb.LimitReport) Report {
	return Report{
		Tenant: r.GetTenant(), Epoch: r.GetEpoch(), Sequence: r.GetSequence(), Returned: fromAmounts(r.GetReturned()), Holding: fromHolding(r.GetHolding()),
		Need: fromAmounts(r.GetNeed()).Over(), Waiting: fromAmounts(r.GetWaiting()).Over(), More: fromAmounts(r.GetMore()).Over(),
		NeedHolding: fromHolding(r.GetNeedHolding()), MoreHolding: fromHolding(r.GetMoreHolding()), Handover: r.GetHandover(), Assumed: fromAmounts(r.GetAssumed()), Part: r.GetPart(),
	}
}

func grant(g Grant) *pb.LimitGrant {
	out := &pb.LimitGrant{Epoch: g.Epoch, Sequence: g.Sequence}
	switch g.Refusal {
	case NotOwner:
		out.Refusal = pb.LimitRefusal_LIMIT_REFUSAL_NOT_OWNER
		return out
	case UnknownEpoch:
		out.Refusal = pb.LimitRefusal_LIMIT_REFUSAL_UNKNOWN_EPOCH
		return out
	case Answered:
	}
	out.Granted, out.Holding, out.Account = amounts(g.Granted), holding(g.Holding), account(&g.Account)
	return out
}

func fromGrant(g *pb.LimitGrant) Grant {
	out := Grant{
		Epoch: g.GetEpoch(), Sequence: g.GetSequence(), Granted: fromAmounts(g.GetGranted()), Holding: fromHolding(g.GetHolding()),
		Account: fromAccount(g.GetAccount()),
	}
	switch g.GetRefusal() {
	case pb.LimitRefusal_LIMIT_REFUSAL_UNSPECIFIED:
	case pb.LimitRefusal_LIMIT_REFUSAL_UNKNOWN_EPOCH:
		out.Refusal = UnknownEpoch
	default:
		out.Refusal = NotOwner
	}
	return out
}

func account(a *Account) *pb.LimitAccount {
	out := &pb.LimitAccount{Tenant: a.Tenant, Level: amounts(a.Level), RequestTime: durationpb.New(a.RequestTime)}
	for _, h := range a.Holders {
		out.Holders = append(out.Holders, &pb.LimitHolder{RouterId: h.ID, Holding: holding(h.Holding)})
	}
	return out
}

func fromAccount(a *pb.LimitAccount) Account {
	out := Account{Tenant: a.GetTenant(), Level: fromAmounts(a.GetLevel()), RequestTime: a.GetRequestTime().AsDuration()}
	for _, h := range a.GetHolders() {
		out.Holders = append(out.Holders, Holder{h.GetRouterId(), fromHolding(h.GetHolding())})
	}
	return out
}
