module sealane/interop/arrivals-go

go 1.26.0
